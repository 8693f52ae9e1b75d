/* Handles that are none. Usage: handles MODEL */
#include "check.h"

static vllm_sampling_params sampling;

/* Every function that takes an engine refuses this one, and the text names it as such. */
static void check_dead(vllm_engine* engine)
{
    vllm_completion out;
    char* report = (char*)1;
    int32_t token = 65, written;
    vllm_token_callback no_callback_needed = (vllm_token_callback)1;
    const char* part = "not a live engine";
    CHECK_REFUSED(vllm_complete(engine, "A", &sampling, &out), VLLM_ERR_INVALID_ARGUMENT, part);
    CHECK_REFUSED(vllm_complete_tokens(engine, &token, 1, &sampling, &token, 1, &written, &out),
                  VLLM_ERR_INVALID_ARGUMENT, part);
    CHECK_REFUSED(vllm_complete_stream(engine, "A", &sampling, no_callback_needed, NULL), VLLM_ERR_INVALID_ARGUMENT, part);
    CHECK_REFUSED(vllm_engine_offload_report(engine, &report), VLLM_ERR_INVALID_ARGUMENT, part);
    CHECK(!report);
    vllm_engine_free(engine);
    CHECK(strstr(vllm_last_error(), part));
}

int main(int argc, char** argv)
{
    int on_the_stack = 0;
    vllm_engine *first = NULL, *second = NULL;
    vllm_model_params params = vllm_model_params_default();
    vllm_completion out;
    sampling = vllm_sampling_params_default();
    params.model_path = argv[argc - 1];
    params.device = VLLM_DEVICE_CPU;
    CHECK(vllm_engine_load(&params, &first) == VLLM_OK);
    check_dead((vllm_engine*)&on_the_stack);
    check_dead((vllm_engine*)(uintptr_t)1);
    check_dead((vllm_engine*)(uintptr_t)(uint32_t)(uintptr_t)first);
    CHECK(vllm_complete(first, "A", &sampling, &out) == VLLM_OK);
    vllm_completion_free(&out);
    vllm_engine_free(first);
    check_dead(first);
    CHECK(vllm_engine_load(&params, &second) == VLLM_OK);
    CHECK(second != first);
    check_dead(first);
    CHECK(vllm_complete(second, "A", &sampling, &out) == VLLM_OK);
    vllm_completion_free(&out);
    vllm_engine_free(second);
    return 0;
}
