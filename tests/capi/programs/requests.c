/* Requests that go on by themselves. Usage: requests MODEL */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

enum { N_REQUESTS = 6, N_NEW = 20 };

typedef struct heard {
    char text[4096];
    atomic_int calls, last_calls;
    int stop_after;
    vllm_request* request;
    vllm_engine* engine;
} heard;

static bool hear(const char* delta_text, bool finished, void* user_data)
{
    heard* all = (heard*)user_data;
    CHECK(all->last_calls == 0);
    strncat(all->text, delta_text, sizeof all->text - strlen(all->text) - 1);
    all->calls++;
    all->last_calls += finished;
    return all->calls != all->stop_after;
}

static vllm_request* submit(vllm_engine* engine, const char* prompt, int max_tokens, vllm_token_callback callback,
                            heard* all)
{
    vllm_request* request = NULL;
    vllm_sampling_params params = greedy(max_tokens);
    CHECK(vllm_request_submit(engine, prompt, &params, callback, all, &request) == VLLM_OK);
    CHECK(request && strcmp(vllm_last_error(), "") == 0);
    return request;
}

static void check_many_at_once_say_what_each_says_alone(vllm_engine* engine)
{
    static heard all[N_REQUESTS];
    vllm_request* requests[N_REQUESTS];
    char prompt[2] = "A";
    for (int i = 0; i < N_REQUESTS; i++) {
        prompt[0] = (char)('A' + i);
        requests[i] = submit(engine, prompt, N_NEW + i, hear, &all[i]);
    }
    for (int i = N_REQUESTS - 1; i >= 0; i--) {
        vllm_completion alone;
        vllm_sampling_params params = greedy(N_NEW + i);
        CHECK(vllm_request_wait(requests[i]) == VLLM_OK && vllm_request_wait(requests[i]) == VLLM_OK);
        CHECK(vllm_request_done(requests[i]) && strcmp(vllm_request_error(requests[i]), "") == 0);
        prompt[0] = (char)('A' + i);
        CHECK(vllm_complete(engine, prompt, &params, &alone) == VLLM_OK);
        CHECK(all[i].last_calls == 1 && strcmp(all[i].text, alone.text) == 0);
        vllm_completion_free(&alone);
        CHECK(vllm_request_cancel(requests[i]) == VLLM_OK);
        vllm_request_free(requests[i]);
    }
}

static void check_the_end_can_be_asked_for(vllm_engine* engine)
{
    static heard cancelled, stopped, freed;
    vllm_request* request = submit(engine, "never ends", 200, hear, &cancelled);
    CHECK(!vllm_request_done(request));
    CHECK(vllm_request_cancel(request) == VLLM_OK && vllm_request_wait(request) == VLLM_OK);
    CHECK(cancelled.last_calls == 1 && strcmp(vllm_request_error(request), "") == 0);
    vllm_request_free(request);
    stopped.stop_after = 2;
    request = submit(engine, "never ends", 200, hear, &stopped);
    CHECK(vllm_request_wait(request) == VLLM_OK && vllm_request_done(request));
    CHECK(stopped.calls == 2 && stopped.last_calls == 0);
    vllm_request_free(request);
    request = submit(engine, "never ends", 200, hear, &freed);
    vllm_request_free(request);
    CHECK(freed.last_calls == 1);
}

static bool misbehave(const char* delta_text, bool finished, void* user_data)
{
    heard* all = (heard*)user_data;
    (void)delta_text;
    while (!all->request)
        usleep(1000);
    CHECK_REFUSED(vllm_request_wait(all->request), VLLM_ERR_INVALID_ARGUMENT, "inside its own callback");
    vllm_request_free(all->request);
    CHECK(strstr(vllm_last_error(), "inside its own callback"));
    vllm_engine_free(all->engine);
    CHECK(strstr(vllm_last_error(), "inside the callback"));
    CHECK(!vllm_request_done(all->request) && strcmp(vllm_request_error(all->request), "") == 0);
    all->last_calls += finished;
    return true;
}

static void check_what_a_callback_may_not(vllm_engine* engine)
{
    static heard all;
    all.engine = engine;
    all.request = submit(engine, "A", 4, misbehave, &all);
    CHECK(vllm_request_wait(all.request) == VLLM_OK);
    CHECK(all.last_calls == 1);
    vllm_request_free(all.request);
}

static void spoil(const int32_t* token_ids, int32_t n_token_ids, float* logits, int32_t vocab_size, void* user_data)
{
    (void)token_ids;
    if (n_token_ids == 3)
        for (int i = 0; i < vocab_size; i++)
            logits[i] = NAN;
    vllm_completion out;
    CHECK_REFUSED(vllm_complete(*(vllm_engine**)user_data, "A", &(vllm_sampling_params){.top_p = 1, .max_tokens = 1,
                  .repetition_penalty = 1}, &out), VLLM_ERR_INVALID_ARGUMENT, "logits processor");
}

/* A processor that ruins its logits ends its own request and no other. */
static void check_an_error_is_its_own_requests(vllm_engine* engine)
{
    static heard bad, good;
    vllm_request* request = NULL;
    vllm_sampling_params params = greedy(10);
    params.logits_processor = spoil;
    params.logits_processor_user_data = &engine;
    CHECK(vllm_request_submit(engine, "A", &params, hear, &bad, &request) == VLLM_OK);
    vllm_request* other = submit(engine, "B", 30, hear, &good);
    CHECK_REFUSED(vllm_request_wait(request), VLLM_ERR_RUNTIME, "NaN");
    CHECK(strstr(vllm_request_error(request), "NaN") && bad.last_calls == 1);
    CHECK(vllm_request_wait(other) == VLLM_OK && good.last_calls == 1);
    vllm_request_free(other);
    vllm_request_free(request);
}

static void check_dead(vllm_request* request)
{
    const char* part = "is not a live request";
    CHECK_REFUSED(vllm_request_wait(request), VLLM_ERR_INVALID_ARGUMENT, part);
    CHECK_REFUSED(vllm_request_cancel(request), VLLM_ERR_INVALID_ARGUMENT, part);
    CHECK(!vllm_request_done(request) && strstr(vllm_last_error(), part));
    CHECK(strcmp(vllm_request_error(request), "") == 0 && strstr(vllm_last_error(), part));
    vllm_request_free(request);
    CHECK(strstr(vllm_last_error(), part));
}

static void check_refusals(vllm_engine* engine)
{
    static heard all;
    vllm_request* request = (vllm_request*)1;
    vllm_sampling_params params = greedy(4);
    CHECK_REFUSED(vllm_request_submit(engine, "", &params, hear, &all, &request), VLLM_ERR_INVALID_ARGUMENT, "no tokens");
    CHECK(!request);
    check_dead((vllm_request*)engine);
    check_dead((vllm_request*)&all);
    request = submit(engine, "A", 2, hear, &all);
    CHECK_REFUSED(vllm_complete((vllm_engine*)request, "A", &params, &(vllm_completion){0}), VLLM_ERR_INVALID_ARGUMENT,
                  "is not a live engine");
    check_dead((vllm_request*)(uintptr_t)(uint32_t)(uintptr_t)request);
    vllm_request_free(request);
    check_dead(request);
}

/* vllm_engine_free ends what was submitted; its callback has heard of it when that returns. */
static void check_requests_outlive_their_engine(vllm_engine* engine)
{
    static heard all;
    vllm_request* request = submit(engine, "never ends", 200, hear, &all);
    vllm_engine_free(engine);
    CHECK(strcmp(vllm_last_error(), "") == 0);
    CHECK(all.last_calls == 1 && vllm_request_done(request) && vllm_request_wait(request) == VLLM_OK);
    CHECK(vllm_request_cancel(request) == VLLM_OK);
    vllm_request_free(request);
}

int main(int argc, char** argv)
{
    vllm_engine* engine = load_on_cpu(argv[argc - 1]);
    check_many_at_once_say_what_each_says_alone(engine);
    check_the_end_can_be_asked_for(engine);
    check_what_a_callback_may_not(engine);
    check_an_error_is_its_own_requests(engine);
    check_refusals(engine);
    check_requests_outlive_their_engine(engine);
    return 0;
}
