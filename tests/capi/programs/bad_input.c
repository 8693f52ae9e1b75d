/* Loads that must fail, one after the other in one process, and then one that works.
 * Usage: bad_input GOOD_MODEL [STATUS PART MODEL]... */
#include "check.h"

static vllm_engine* load(const char* path, vllm_status expected, const char* part)
{
    vllm_engine* engine = (vllm_engine*)1;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = path;
    params.device = VLLM_DEVICE_CPU;
    vllm_status found = vllm_engine_load(&params, &engine);
    printf("%s: %d %s\n", path, (int)found, vllm_last_error());
    CHECK(found == expected);
    CHECK(strstr(vllm_last_error(), part));
    CHECK((found == VLLM_OK) == (engine != NULL));
    return engine;
}

int main(int argc, char** argv)
{
    for (int i = 2; i + 2 < argc; i += 3)
        load(argv[i + 2], (vllm_status)atoi(argv[i]), argv[i + 1]);
    vllm_engine_free(load(argv[1], VLLM_OK, ""));
    return 0;
}
