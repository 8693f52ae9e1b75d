/* Eight threads make the first call at once: Python starts once, and each has its own error. */
#include <pthread.h>

#include "check.h"

enum { THREADS = 8 };

static pthread_barrier_t together;

static void* call(void* number)
{
    char config[64], part[32];
    vllm_engine* engine = NULL;
    vllm_model_params params = vllm_model_params_default();
    snprintf(config, sizeof config, "{\"key%d\": 1}", (int)(intptr_t)number);
    snprintf(part, sizeof part, "key%d", (int)(intptr_t)number);
    params.offload_config = config;
    pthread_barrier_wait(&together);
    CHECK_REFUSED(vllm_engine_load(&params, &engine), VLLM_ERR_INVALID_ARGUMENT, part);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, call, (void*)i) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(strcmp(vllm_last_error(), "") == 0);
    return 0;
}
