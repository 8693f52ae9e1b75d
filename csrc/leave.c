/*
 * The end of the process. A program may return from main while the library still computes for its other threads. Then the
 * static destructors of torch would run under a thread that uses what they destroy, and the process would die of it. So
 * computing is stopped first, in a handler that runs before them because it is registered after torch was loaded.
 */
#include <Python.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Wait until the process computes nothing any more, but not for ever: the host's own threads may never rest. */
static void wait_for_quiet(void)
{
    enum { STEPS = 500, STEP_US = 10000 };
    for (int step = 0; step < STEPS; step++) {
        double before = cpu_seconds();
        usleep(STEP_US);
        if (cpu_seconds() - before < STEP_US * 1e-7)
            return;
    }
}

static void stop_computing(void)
{
    if (!vllm__refuse_calls())
        return;
    PyGILState_Ensure(); /* never released, so that no thread begins another operation */
    wait_for_quiet();
}

void vllm__guard_exit(void)
{
    /* twice: once torch is there, and after what it loads with the first model */
    static int times;
    if (__atomic_fetch_add(&times, 1, __ATOMIC_RELAXED) < 2)
        atexit(stop_computing);
}
