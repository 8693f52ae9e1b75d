/*
 * The end of the process. A program may return from main while the library still computes for its other threads. Then the
 * static objects of torch would be destroyed under a thread that uses them, and the process would die of it. So computing
 * is stopped first. Two things see to it:
 *
 * A destructor of the thread that ends the process, which exit() calls before all handlers: of the main thread, or of one
 * that calls exit() in a callback. It needs the thread to have called the library.
 *
 * A handler, for all other threads. exit() takes the latest registered first, and torch registers the destructor of an
 * object the first time that one of its functions is called. So the handler is registered anew after each step of an
 * engine: what the step made is then older.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* Of the Itanium C++ ABI, 3.3.5: like atexit, but under a name by which the handler can be called and taken off again. */
extern int __cxa_atexit(void (*handler)(void*), void* argument, void* owner);
extern void __cxa_finalize(void* owner);
/* Of glibc since 2.18, for thread_local objects of C++: called when the thread ends, or when it calls exit(). */
extern int __cxa_thread_atexit_impl(void (*destructor)(void*), void* object, void* library);
extern void* __dso_handle;

static char owner;
static pthread_mutex_t moving_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_moving;
static _Thread_local bool is_watched;
static _Thread_local int depth; /* calls of the library that this thread is in */

/* Whether a task of this process runs or waits for a disk, whether or not it has a core at the moment. */
static bool is_running(const char* task)
{
    char path[64], stat[512];
    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", task);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false; /* it has just ended */
    ssize_t length = read(descriptor, stat, sizeof stat - 1);
    close(descriptor);
    stat[length > 0 ? length : 0] = '\0';
    const char* name_end = strrchr(stat, ')');
    return name_end && (strncmp(name_end, ") R", 3) == 0 || strncmp(name_end, ") D", 3) == 0);
}

/* Whether any other thread computes. Source: proc(5), the state of a task. */
static bool others_run(void)
{
    DIR* tasks = opendir("/proc/self/task");
    if (!tasks)
        return false;
    pid_t self = gettid();
    bool found = false;
    for (struct dirent* entry; !found && (entry = readdir(tasks));)
        found = isdigit((unsigned char)*entry->d_name) && atol(entry->d_name) != self && is_running(entry->d_name);
    closedir(tasks);
    return found;
}

/* Wait until all other threads rest, but not for ever: the host's own may never do. They must be found resting several
 * times, for they are looked at one after the other, and one that rests may be waiting for one that runs. */
static void wait_for_quiet(void)
{
    enum { LOOKS = 5000, LOOK_US = 1000, ENOUGH = 3 };
    for (int look = 0, quiet = 0; look < LOOKS && quiet < ENOUGH; look++) {
        usleep(LOOK_US);
        quiet = others_run() ? 0 : quiet + 1;
    }
}

static void stop_computing(void* nothing)
{
    (void)nothing;
    if (is_moving || !vllm__refuse_calls())
        return;
    PyGILState_Ensure(); /* never released, so that no thread begins another operation */
    wait_for_quiet();
}

/* The thread ends, or the process. A thread cannot end inside a call; and when the main one does, by pthread_exit, the
 * destructors are not called. Source: glibc, sysdeps/nptl/libc_start_call_main.h. */
static void thread_or_process_ends(void* nothing)
{
    if (depth > 0 || gettid() == getpid())
        stop_computing(nothing);
}

void vllm__enter(void)
{
    if (!is_watched)
        is_watched = __cxa_thread_atexit_impl(thread_or_process_ends, NULL, &__dso_handle) == 0;
    depth++;
}

void vllm__leave(void)
{
    depth--;
}

void vllm__guard_exit(void)
{
    pthread_mutex_lock(&moving_lock);
    is_moving = true;
    __cxa_finalize(&owner); /* calls the handler, which finds that it is only moved; its place in the list is used again */
    is_moving = false;
    __cxa_atexit(stop_computing, NULL, &owner);
    pthread_mutex_unlock(&moving_lock);
}

void vllm__hold_guard(void)
{
    pthread_mutex_lock(&moving_lock);
}

void vllm__release_guard(void)
{
    pthread_mutex_unlock(&moving_lock);
}
