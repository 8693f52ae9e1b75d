/* Signals, fork and stdout of the host, with Python started. Usage: process MODEL */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static vllm_engine* engine;
static vllm_sampling_params sampling;
static atomic_bool is_enough;

enum { N_WATCHED = 7 };
static const int WATCHED[N_WATCHED] = {SIGINT, SIGTERM, SIGPIPE, SIGSEGV, SIGFPE, SIGCHLD, SIGHUP};
static struct sigaction at_start[N_WATCHED]; /* whoever started this process may have some of them ignored */

static void check_handlers_are_as_at_start(void)
{
    for (int i = 0; i < N_WATCHED; i++) {
        struct sigaction now;
        CHECK(sigaction(WATCHED[i], NULL, &now) == 0 && now.sa_handler == at_start[i].sa_handler);
    }
}

/* The child of a process in which the library has started. */
static int child(void)
{
    vllm_completion out;
    vllm_engine* none = (vllm_engine*)1;
    vllm_model_params params = vllm_model_params_default();
    CHECK_REFUSED(vllm_complete(engine, "A", &sampling, &out), VLLM_ERR_RUNTIME, "fork");
    CHECK_REFUSED(vllm_engine_load(&params, &none), VLLM_ERR_RUNTIME, "fork");
    CHECK(!none);
    vllm_engine_free(engine);
    CHECK(strstr(vllm_last_error(), "fork"));
    vllm_log_set(NULL, NULL);
    CHECK(strcmp(vllm_version(), VLLM_VERSION) == 0);
    return 0;
}

/* A child that was forked before the first call starts its own Python. */
static int early_child(void)
{
    vllm_engine* none = NULL;
    vllm_model_params params = vllm_model_params_default();
    params.offload_config = "{";
    CHECK_REFUSED(vllm_engine_load(&params, &none), VLLM_ERR_INVALID_ARGUMENT, "JSON");
    return 0;
}

/* Holds the interpreter's lock most of the time. */
static void* generate(void* nothing)
{
    vllm_completion out;
    vllm_sampling_params params = greedy(100);
    while (!is_enough) {
        CHECK(vllm_complete(engine, "A", &params, &out) == VLLM_OK);
        vllm_completion_free(&out);
    }
    return nothing;
}

static void check_child(int (*body)(void))
{
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        exit(body()); /* with its atexit handlers */
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char** argv)
{
    pthread_t thread;
    vllm_completion out;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = argv[argc - 1];
    params.device = VLLM_DEVICE_CPU;
    sampling = vllm_sampling_params_default();
    for (int i = 0; i < N_WATCHED; i++)
        CHECK(sigaction(WATCHED[i], NULL, &at_start[i]) == 0);
    check_child(early_child);
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    check_handlers_are_as_at_start();
    CHECK(pthread_create(&thread, NULL, generate, NULL) == 0);
    for (int i = 0; i < 20; i++)
        check_child(child);
    is_enough = true;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(vllm_complete(engine, "A", &sampling, &out) == VLLM_OK);
    vllm_completion_free(&out);
    check_handlers_are_as_at_start();
    return 0;
}
