/*
 * What the C files of libvllm share with each other, and what pyvllm/capi.py may call. Nothing here is exported.
 */
#ifndef VLLM_INTERNAL_H
#define VLLM_INTERNAL_H

#include "python_side.h"

/* report.c: the last error of this thread. Texts are cut at a character when they are longer than its room. */
void vllm__set_errorf(const char* format, ...) __attribute__((format(printf, 1, 2)));
void vllm__clear_error(void);

/* signals.c: while a server runs, SIGINT and SIGTERM make this descriptor readable. Returns it, or -1 with the error text
 * set; vllm__leave_signals puts the former handlers back. */
int vllm__take_signals(void);
void vllm__leave_signals(void);

/* start.c: VLLM_OK when Python runs and capi.py is bound to this copy of the library, else a status with its text set. */
vllm_status vllm__start(void);

/* start.c: refuse every later call, because the process ends. False where there is nothing of ours to stop: Python is the
 * host's own, or was not started, or belongs to the parent of this process. */
bool vllm__refuse_calls(void);

/* leave.c: around every call into Python, so that a thread that ends the process stops what computes first. */
void vllm__enter(void);
void vllm__leave(void);

/* leave.c: while it is held, no thread registers the exit handler anew. */
void vllm__hold_guard(void);
void vllm__release_guard(void);

/* home.c: where to find Python. */
typedef struct vllm__home {
    char program[4096 + 64]; /* the interpreter to behave as */
    char site_dir[4096];     /* the directory that holds the pyvllm this library belongs to, or "" */
    const char* chosen;      /* VLLM_PYTHON_HOME, or NULL: the prefix that it must then run with */
} vllm__home;

/* Fill in the site directory; it needs no interpreter. */
void vllm__find_site_dir(vllm__home* home);

/* Fill in the program too. Returns 0, or -1 with the error text set. */
int vllm__find_program(vllm__home* home);

/* api.c: run cffi's start, which binds capi.py. Returns 0 or -1. */
int vllm__cffi_start(void);

#endif
