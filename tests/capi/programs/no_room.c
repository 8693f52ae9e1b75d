/* Loads under a limit on the address space, which fail, and one without it, which works. Usage: no_room MODEL */
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

/* Leave the process `spare` bytes more than it has mapped; 0 takes the limit away. */
static void limit(rlim_t spare)
{
    unsigned long long pages = 0;
    struct rlimit room;
    FILE* file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%llu", &pages) == 1 && fclose(file) == 0);
    CHECK(getrlimit(RLIMIT_AS, &room) == 0);
    room.rlim_cur = spare ? (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + spare : room.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &room) == 0);
}

int main(int argc, char** argv)
{
    vllm_engine* engine = (vllm_engine*)1;
    char* plan = NULL;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = argv[argc - 1];
    params.device = VLLM_DEVICE_CPU;
    CHECK(vllm_offload_plan(&params, NULL, &plan) == VLLM_OK);
    vllm_string_free(plan);
    limit(4 << 20); /* too little for the model */
    CHECK_REFUSED(vllm_engine_load(&params, &engine), VLLM_ERR_MODEL_LOAD, "the model does not fit");
    CHECK(!engine && strstr(vllm_last_error(), "RLIMIT_AS"));
    limit(64 << 20); /* enough for the model, too little for the code that computes */
    CHECK_REFUSED(vllm_engine_load(&params, &engine), VLLM_ERR_MODEL_LOAD, "the code that computes (");
    CHECK(!strstr(vllm_last_error(), "()"));
    CHECK(!engine && strstr(vllm_last_error(), "RLIMIT_AS leaves"));
    limit(0);
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    vllm_engine_free(engine);
    return 0;
}
