/* R134: load, use and free again and again; the memory of the process stays. Usage: reload MODEL TIMES */
#include <unistd.h>

#include "check.h"

static long resident_kib(void)
{
    long total = 0, resident = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &total, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void cycle(const char* path)
{
    vllm_engine* engine = NULL;
    vllm_completion out;
    vllm_model_params params = vllm_model_params_default();
    vllm_sampling_params sampling = vllm_sampling_params_default();
    params.model_path = path;
    params.device = VLLM_DEVICE_CPU;
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    CHECK(vllm_complete(engine, "A", &sampling, &out) == VLLM_OK);
    vllm_completion_free(&out);
    vllm_engine_free(engine);
}

int main(int argc, char** argv)
{
    int times = atoi(argv[argc - 1]);
    for (int i = 0; i < 3; i++)
        cycle(argv[1]);
    long before = resident_kib();
    for (int i = 0; i < times; i++)
        cycle(argv[1]);
    printf("%ld\n", resident_kib() - before);
    return 0;
}
