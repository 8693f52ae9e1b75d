/* The threads of one engine. The caller works too, so a pool of n runs n - 1 threads. */
#ifndef VLLM_KERNELS_POOL_H
#define VLLM_KERNELS_POOL_H
#include <stddef.h>
#include "kernels.h"

/* Computes one of a job's tasks; `worker` numbers the thread, from 0 to pool_size - 1. */
typedef void (*vk_task)(void *job, int64_t task, int worker);

int pool_size(const vk_pool *pool);
/* Runs tasks 0 to count - 1 (below 2^31), in any order, on all threads, and returns when all are done.
 * nanoseconds: about what all tasks take one thread. Little work is done by the caller alone: that is sooner done than
 * telling the others, and does not wait for a thread that has just lost its core. */
void pool_run(vk_pool *pool, vk_task task, void *job, int64_t count, int64_t nanoseconds);
/* Says what will be read after this job, in tasks of task_bytes, shared out as pool_run does: a thread that waits asks
 * for the beginning of its own part, so that memory is not idle while others end their tasks or the caller does what
 * is not shared. */
void pool_expect(vk_pool *pool, const char *rows, int64_t task_bytes, int64_t tasks);
/* Whether a task is the next of those that are the worker's own, as far as it has come. */
bool pool_is_next(const vk_pool *pool, int worker, int64_t task);
/* What a worker has noted in this job for one of its later tasks; 0: nothing. It remembers the last note only. */
int64_t pool_note(const vk_pool *pool, int worker, int64_t task);
void pool_take_note(vk_pool *pool, int worker, int64_t task, int64_t note);
/* Memory that stays with the pool, 64-byte aligned: some pieces that a job's caller fills, and one for each worker.
 * NULL when the system has none; a worker's own is there once pool_reserve has said so. */
enum { POOL_NORMED, POOL_WIDE, POOL_MIXED, POOL_TASKS, POOL_ROWS, POOL_ROUTES, POOL_PIECES };
void *pool_shared(vk_pool *pool, int piece, size_t nbytes);
bool pool_reserve(vk_pool *pool, size_t nbytes);
void *pool_scratch(const vk_pool *pool, int worker);
#endif
