/* What works before Python and without it. PYTHON_HOME is set to nonsense by the test: a start would fail. */
#include <math.h>

#include "check.h"

static int lines;

static void count_lines(int32_t level, const char* text, void* user_data)
{
    (void)level;
    (void)text;
    (void)user_data;
    lines++;
}

static void check_model_defaults(void)
{
    vllm_model_params defaults = vllm_model_params_default(), zero;
    CHECK(fabs(defaults.gpu_memory_utilization - 0.92) < 1e-12);
    defaults.gpu_memory_utilization = 0;
    memset(&zero, 0, sizeof zero);
    CHECK(memcmp(&defaults, &zero, sizeof zero) == 0);
}

static void check_sampling_defaults(void)
{
    vllm_sampling_params defaults = vllm_sampling_params_default(), zero;
    CHECK(defaults.temperature == 1 && defaults.top_p == 1 && defaults.max_tokens == 16);
    CHECK(defaults.repetition_penalty == 1);
    defaults.temperature = defaults.top_p = defaults.repetition_penalty = 0;
    defaults.max_tokens = 0;
    memset(&zero, 0, sizeof zero);
    CHECK(memcmp(&defaults, &zero, sizeof zero) == 0);
}

int main(void)
{
    vllm_completion completion = {NULL, NULL, 3, 4};
    CHECK(strcmp(vllm_last_error(), "") == 0);
    check_model_defaults();
    check_sampling_defaults();
    CHECK(strcmp(vllm_version(), VLLM_VERSION) == 0);
    CHECK(vllm_abi_version() == 21);
    CHECK(strcmp(vllm_status_string(VLLM_OK), "VLLM_OK") == 0);
    CHECK(strcmp(vllm_status_string(VLLM_ERR_INVALID_ARGUMENT), "VLLM_ERR_INVALID_ARGUMENT") == 0);
    CHECK(strcmp(vllm_status_string(VLLM_ERR_MODEL_LOAD), "VLLM_ERR_MODEL_LOAD") == 0);
    CHECK(strcmp(vllm_status_string(VLLM_ERR_RUNTIME), "VLLM_ERR_RUNTIME") == 0);
    CHECK(strcmp(vllm_status_string(VLLM_ERR_UNKNOWN), "VLLM_ERR_UNKNOWN") == 0);
    CHECK(strcmp(vllm_status_string((vllm_status)99), "unknown status") == 0);
    vllm_log_set(count_lines, NULL);
    vllm_log_set(NULL, NULL);
    vllm_string_free(NULL);
    vllm_completion_free(NULL);
    vllm_completion_free(&completion);
    CHECK(completion.prompt_tokens == 0 && completion.completion_tokens == 0);
    vllm_engine_free(NULL);
    CHECK(strcmp(vllm_last_error(), "") == 0 && lines == 0);
    return 0;
}
