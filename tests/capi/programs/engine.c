/* One engine from load to free, and every way to ask it. Usage: engine MODEL */
#include "check.h"

enum { N_PROMPT = 3, N_NEW = 12 };
static const int32_t PROMPT[N_PROMPT] = {65, 66, 67};

typedef struct heard {
    char text[4096];
    int calls, last_calls, stop_after;
} heard;

static bool hear(const char* delta_text, bool finished, void* user_data)
{
    heard* all = (heard*)user_data;
    CHECK(all->last_calls == 0);
    CHECK(finished || *delta_text);
    strncat(all->text, delta_text, sizeof all->text - strlen(all->text) - 1);
    all->calls++;
    all->last_calls += finished;
    return all->calls != all->stop_after;
}

static void check_text_and_stream_agree(vllm_engine* engine)
{
    vllm_sampling_params params = greedy(N_NEW);
    vllm_completion first, second;
    heard all = {"", 0, 0, 0};
    CHECK(vllm_complete(engine, "ABC", &params, &first) == VLLM_OK);
    CHECK(vllm_complete(engine, "ABC", &params, &second) == VLLM_OK);
    CHECK(strcmp(first.text, second.text) == 0);
    CHECK(strcmp(first.finish_reason, "length") == 0 && first.finish_reason == second.finish_reason);
    CHECK(first.completion_tokens == N_NEW && first.prompt_tokens >= N_PROMPT);
    CHECK(vllm_complete_stream(engine, "ABC", &params, hear, &all) == VLLM_OK);
    CHECK(all.last_calls == 1 && strcmp(all.text, first.text) == 0);
    vllm_completion_free(&first);
    CHECK(!first.text && !first.finish_reason && first.prompt_tokens == 0 && first.completion_tokens == 0);
    vllm_completion_free(&first);
    vllm_completion_free(&second);
}

static void check_false_stops(vllm_engine* engine)
{
    vllm_sampling_params params = greedy(N_NEW);
    heard all = {"", 0, 0, 1};
    CHECK(vllm_complete_stream(engine, "ABC", &params, hear, &all) == VLLM_OK);
    CHECK(all.calls == 1 && strcmp(vllm_last_error(), "") == 0);
}

static void check_tokens_are_cut_to_the_room(vllm_engine* engine)
{
    vllm_sampling_params params = greedy(N_NEW);
    int32_t all[N_NEW], few[N_NEW + 1], n_all = -1, n_few = -1, n_none = -1;
    vllm_completion out;
    CHECK(vllm_complete_tokens(engine, PROMPT, N_PROMPT, &params, all, N_NEW, &n_all, NULL) == VLLM_OK);
    CHECK(n_all == N_NEW);
    few[4] = -7;
    CHECK(vllm_complete_tokens(engine, PROMPT, N_PROMPT, &params, few, 4, &n_few, &out) == VLLM_OK);
    CHECK(n_few == 4 && memcmp(all, few, 4 * sizeof *all) == 0 && few[4] == -7);
    CHECK(out.completion_tokens == N_NEW && out.prompt_tokens == N_PROMPT && out.text);
    vllm_completion_free(&out);
    CHECK(vllm_complete_tokens(engine, PROMPT, N_PROMPT, &params, NULL, 0, &n_none, NULL) == VLLM_OK);
    CHECK(n_none == 0);
}

static void check_a_seed_repeats(vllm_engine* engine)
{
    vllm_sampling_params params = greedy(N_NEW);
    int32_t tokens[2][N_NEW], written;
    params.temperature = 1;
    params.has_seed = 1;
    params.seed = UINT64_MAX;
    for (int i = 0; i < 2; i++)
        CHECK(vllm_complete_tokens(engine, PROMPT, N_PROMPT, &params, tokens[i], N_NEW, &written, NULL) == VLLM_OK);
    CHECK(memcmp(tokens[0], tokens[1], sizeof tokens[0]) == 0);
}

static void check_failure_leaves_nothing(vllm_engine* engine)
{
    vllm_sampling_params params = greedy(N_NEW);
    vllm_completion out = {(char*)1, "x", 7, 7};
    static char long_prompt[1 << 16];
    memset(long_prompt, 'a', sizeof long_prompt - 1);
    CHECK_REFUSED(vllm_complete(engine, long_prompt, &params, &out), VLLM_ERR_INVALID_ARGUMENT, "max_model_len");
    CHECK(!out.text && !out.finish_reason && out.prompt_tokens == 0 && out.completion_tokens == 0);
    int32_t written = 5, tokens[N_NEW], outside[1] = {1 << 30};
    CHECK_REFUSED(vllm_complete_tokens(engine, outside, 1, &params, tokens, N_NEW, &written, NULL),
                  VLLM_ERR_INVALID_ARGUMENT, "1073741824");
    CHECK(written == 0);
    CHECK_REFUSED(vllm_complete(engine, "\xff", &params, &out), VLLM_ERR_INVALID_ARGUMENT, "prompt is not valid UTF-8");
}

static void check_report(vllm_engine* engine)
{
    char* report = NULL;
    CHECK(vllm_engine_offload_report(engine, &report) == VLLM_OK);
    CHECK(report[0] == '{' && strstr(report, "\"measured\"") && strstr(report, "LlamaForCausalLM"));
    vllm_string_free(report);
}

int main(int argc, char** argv)
{
    vllm_engine* engine = load_on_cpu(argv[argc - 1]);
    check_text_and_stream_agree(engine);
    check_false_stops(engine);
    check_tokens_are_cut_to_the_room(engine);
    check_a_seed_repeats(engine);
    check_failure_leaves_nothing(engine);
    check_report(engine);
    vllm_engine_free(engine);
    CHECK(strcmp(vllm_last_error(), "") == 0);
    return 0;
}
