/* What a callback may do, and what it may not. Usage: callbacks MODEL */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

static vllm_engine *engine, *other;
static vllm_sampling_params sampling;
static atomic_int calls, is_streaming, has_freed;

/* R135: freeing the engine that the callback runs for is refused; using it, or another one, works. */
static bool call_back(const char* delta_text, bool finished, void* user_data)
{
    vllm_completion out;
    (void)delta_text;
    (void)finished;
    CHECK(user_data == &calls);
    vllm_engine_free(engine);
    CHECK(strstr(vllm_last_error(), "callback"));
    CHECK(vllm_complete(engine, "A", &sampling, &out) == VLLM_OK);
    vllm_completion_free(&out);
    CHECK(vllm_complete(other, "A", &sampling, &out) == VLLM_OK);
    vllm_completion_free(&out);
    CHECK(vllm_complete(other, NULL, &sampling, &out) == VLLM_ERR_INVALID_ARGUMENT);
    calls++;
    return true;
}

static bool dawdle(const char* delta_text, bool finished, void* user_data)
{
    (void)delta_text;
    (void)finished;
    (void)user_data;
    is_streaming = 1;
    usleep(20000);
    CHECK(!has_freed);
    return true;
}

static void* stream(void* nothing)
{
    CHECK(vllm_complete_stream(engine, "AB", &sampling, dawdle, NULL) == VLLM_OK);
    return nothing;
}

/* vllm_engine_free from a second thread waits for the call that runs. */
static void check_free_waits(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, stream, NULL) == 0);
    while (!is_streaming)
        usleep(1000);
    vllm_engine_free(engine);
    has_freed = 1;
    CHECK(strcmp(vllm_last_error(), "") == 0);
    pthread_join(thread, NULL);
}

static bool cancel(int64_t bytes_done, int64_t bytes_planned, const char* name, void* user_data)
{
    CHECK(0 <= bytes_done && bytes_done <= bytes_planned && name && user_data == &calls);
    return false;
}

static bool watch(int64_t bytes_done, int64_t bytes_planned, const char* name, void* user_data)
{
    int64_t* last = (int64_t*)user_data;
    CHECK(name && last[0] <= bytes_done && bytes_done <= bytes_planned);
    last[0] = bytes_done;
    last[1] = bytes_planned;
    return true;
}

static void check_progress(const char* path)
{
    int64_t last[2] = {0, -1};
    vllm_engine* loaded = (vllm_engine*)1;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = path;
    params.device = VLLM_DEVICE_CPU;
    CHECK_REFUSED(vllm_engine_load_with_options(&params, NULL, cancel, &calls, &loaded), VLLM_ERR_RUNTIME, "cancel");
    CHECK(!loaded);
    CHECK(vllm_engine_load_with_options(&params, "", watch, last, &loaded) == VLLM_OK);
    CHECK(last[0] > 0 && last[0] == last[1]);
    vllm_engine_free(loaded);
}

int main(int argc, char** argv)
{
    const char* path = argv[argc - 1];
    sampling = vllm_sampling_params_default();
    sampling.temperature = 0;
    sampling.ignore_eos = 1;
    check_progress(path);
    engine = load_on_cpu(path);
    other = load_on_cpu(path);
    CHECK(vllm_complete_stream(engine, "AB", &sampling, call_back, &calls) == VLLM_OK);
    CHECK(calls > 1 && strcmp(vllm_last_error(), "") == 0);
    check_free_waits();
    vllm_engine_free(other);
    return 0;
}
