/* Where the library's lines go: to a callback while one is set, else to stderr. */
#include "check.h"

typedef struct lines {
    int count;
    int32_t level;
    char last[1024];
} lines;

static void keep(int32_t level, const char* text, void* user_data)
{
    lines* kept = (lines*)user_data;
    kept->count++;
    kept->level = level;
    snprintf(kept->last, sizeof kept->last, "%s", text);
    vllm_log_set(keep, user_data); /* a callback may set the next one */
}

int main(void)
{
    lines kept = {0, 0, ""};
    char* plan = NULL;
    vllm_model_params params = vllm_model_params_default();
    params.offload_config = "{\"uva\": {\"cpu_offload_gb\": 1}, \"prefetch\": {\"offload_group_size\": 2}}";
    vllm_log_set(keep, &kept);
    CHECK(vllm_offload_plan(&params, NULL, &plan) == VLLM_OK);
    vllm_string_free(plan);
    CHECK(kept.count == 1 && kept.level == VLLM_LOG_WARNING && !strchr(kept.last, '\n'));
    CHECK(strstr(kept.last, "[vllm.cpp] offload_config: Both UVA and prefetch") == kept.last);
    vllm_log_set(NULL, NULL);
    CHECK(vllm_offload_plan(&params, NULL, &plan) == VLLM_OK);
    vllm_string_free(plan);
    CHECK(kept.count == 1);
    return 0;
}
