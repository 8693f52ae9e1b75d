/* A configuration that is refused. Usage: refused MODEL */
#include "check.h"

int main(int argc, char** argv)
{
    vllm_engine* engine = (vllm_engine*)1;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = argv[argc - 1];
    params.offload_config = "{\"prefetch\": {\"offload_group_size\": 4, \"offload_num_in_group\": 5}}";
    CHECK_REFUSED(vllm_engine_load(&params, &engine), VLLM_ERR_INVALID_ARGUMENT,
                  "offload_num_in_group (5) must be <= offload_group_size (4)");
    CHECK(!engine);
    return 0;
}
