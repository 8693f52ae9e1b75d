/* The process ends while three threads generate. Usage: ending MODEL main|callback */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

static vllm_engine* engine;
static bool ends_in_callback;
static atomic_int calls;

static bool hear(const char* delta_text, bool finished, void* user_data)
{
    (void)delta_text;
    (void)finished;
    (void)user_data;
    if (++calls == 20 && ends_in_callback)
        exit(0);
    return true;
}

static void* generate(void* nothing)
{
    vllm_sampling_params params = vllm_sampling_params_default();
    params.max_tokens = 100;
    params.ignore_eos = 1;
    for (;;)
        CHECK(vllm_complete_stream(engine, "AB", &params, hear, NULL) == VLLM_OK);
    return nothing;
}

/* Registered before the library's own handler, so it runs after it. */
static void check_later_calls_are_refused(void)
{
    vllm_completion out;
    vllm_sampling_params params = vllm_sampling_params_default();
    if (vllm_complete(engine, "A", &params, &out) != VLLM_ERR_RUNTIME || !strstr(vllm_last_error(), "ending"))
        _exit(3);
}

int main(int argc, char** argv)
{
    pthread_t threads[3];
    vllm_model_params params = vllm_model_params_default();
    params.model_path = argv[1];
    params.device = VLLM_DEVICE_CPU;
    ends_in_callback = strcmp(argv[argc - 1], "callback") == 0;
    atexit(check_later_calls_are_refused);
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, generate, NULL) == 0);
    while (calls < 20 || ends_in_callback)
        usleep(1000);
    return 0;
}
