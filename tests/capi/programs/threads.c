/* Four threads, fifty completions each, on one engine: the tokens of the serial run. Usage: threads MODEL */
#include <pthread.h>

#include "check.h"

enum { THREADS = 4, COMPLETIONS = 50, NEW = 4 };

static vllm_engine* engine;
static int32_t serial[COMPLETIONS][NEW];

static void complete(int number, int32_t* tokens)
{
    int32_t prompt[3] = {number + 1, 2 * number + 1, 100 - number}, written = 0;
    vllm_sampling_params params = vllm_sampling_params_default();
    params.temperature = number % 2 ? 0.0f : 1.0f;
    params.has_seed = 1;
    params.seed = (uint64_t)number;
    params.max_tokens = NEW;
    params.ignore_eos = 1;
    CHECK(vllm_complete_tokens(engine, prompt, 3, &params, tokens, NEW, &written, NULL) == VLLM_OK);
    CHECK(written == NEW && strcmp(vllm_last_error(), "") == 0);
}

/* Each thread takes the prompts in its own order, and fails once in its own way between them. */
static void* work(void* first)
{
    int offset = (int)(intptr_t)first;
    char name[32];
    for (int i = 0; i < COMPLETIONS; i++) {
        int number = (i + offset * 11) % COMPLETIONS;
        int32_t tokens[NEW];
        complete(number, tokens);
        CHECK(memcmp(tokens, serial[number], sizeof tokens) == 0);
        vllm_model_params params = vllm_model_params_default();
        vllm_engine* none = NULL;
        params.device = 1000 + offset;
        snprintf(name, sizeof name, "%d", 1000 + offset);
        CHECK_REFUSED(vllm_engine_load(&params, &none), VLLM_ERR_INVALID_ARGUMENT, name);
    }
    return NULL;
}

int main(int argc, char** argv)
{
    pthread_t threads[THREADS];
    vllm_model_params params = vllm_model_params_default();
    params.model_path = argv[argc - 1];
    params.device = VLLM_DEVICE_CPU;
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    for (int number = 0; number < COMPLETIONS; number++)
        complete(number, serial[number]);
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void*)i) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    vllm_engine_free(engine);
    return 0;
}
