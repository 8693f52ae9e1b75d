/*
 * What the library tells its caller beside a status: the last error of a thread, and lines for the log.
 * Neither allocates, and neither needs Python.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

static _Thread_local char last_error[8192];

/* Drop a character that a limit has cut in two from the end of a text. */
static void cut_at_character(char* text)
{
    size_t end = strlen(text), start = end;
    while (start > 0 && (text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (end - (start - 1) < length)
        text[start - 1] = '\0';
}

void vllm__set_error(const char* text)
{
    vllm__set_errorf("%s", text);
}

void vllm__set_errorf(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof last_error)
        cut_at_character(last_error);
}

void vllm__clear_error(void)
{
    last_error[0] = '\0';
}

VLLM_API const char* vllm_last_error(void)
{
    return last_error;
}

/* Callback and user data change together. */
static struct {
    vllm_log_callback callback;
    void* user_data;
} log_sink;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_log(void)
{
    pthread_mutex_lock(&log_lock);
}

static void unlock_log(void)
{
    pthread_mutex_unlock(&log_lock);
}

/* A child of fork() must not inherit the lock from a thread that it does not have. */
__attribute__((constructor)) static void guard_log_against_fork(void)
{
    pthread_atfork(lock_log, unlock_log, unlock_log);
}

VLLM_API void vllm_log_set(vllm_log_callback callback, void* user_data)
{
    lock_log();
    log_sink.callback = callback;
    log_sink.user_data = user_data;
    unlock_log();
}

bool vllm__logs_to_stderr(void)
{
    lock_log();
    bool is_stderr = !log_sink.callback;
    unlock_log();
    return is_stderr;
}

void vllm__log(int32_t level, const char* text)
{
    lock_log();
    vllm_log_callback callback = log_sink.callback;
    void* user_data = log_sink.user_data;
    unlock_log();
    /* called without the lock, so that a callback may set another one */
    if (callback)
        callback(level, text, user_data);
    else if (level > VLLM_LOG_DEBUG)
        fprintf(stderr, "%s\n", text);
}
