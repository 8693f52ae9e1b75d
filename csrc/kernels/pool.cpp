/* A pool whose threads wait for work by spinning for a moment and then sleeping.
 *
 * A step is some hundred short jobs a few microseconds apart: waking a sleeping thread for each would cost more than
 * the work, and spinning for ever would take the core from others when the engine is idle.
 */
#include "pool.h"
#include "functions.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr int64_t kSpinNanoseconds = 1000000;
constexpr int kMaxThreads = 1024;
/* What it takes to share a job out and to wait for its end, with some margin. */
constexpr int64_t kAloneNanoseconds = 3000;
/* Bytes that a waiting thread reads ahead: a part of its second cache. */
constexpr int64_t kAheadBytes = 256 * 1024;
constexpr int64_t kLine = 64;
constexpr int kBits = 32;
constexpr uint64_t kMask = 0xFFFFFFFF;

/* The tasks of one worker: the end of its range above, the next one below, in one word, so that a thread that takes a
 * ticket learns at once whether it is good. A range is one piece, so that each thread walks through memory in order. */
struct alignas(64) Range {
  std::atomic<uint64_t> word;
};

/* What is read next. The words may be those of two jobs for a moment: asking for a line never fails. */
struct Ahead {
  std::atomic<const char *> rows;
  std::atomic<int64_t> task_bytes, tasks;
  std::atomic<uint32_t> number;
};

/* How far a thread has come in it. */
struct Reader {
  uint32_t number = 0;
  const char *at = nullptr, *end = nullptr;
};

/* What a worker has noted of one of its tasks. */
struct alignas(64) Note {
  uint64_t job;
  int64_t task, note;
};

struct Buffer {
  void *data;
  size_t nbytes;
};

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t(1000000000) + time.tv_nsec;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

long futex(std::atomic<uint32_t> *word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), operation, value, nullptr, nullptr, 0);
}

}  // namespace

struct vk_pool {
  int size;
  const vk_functions *functions;
  Range ranges[kMaxThreads];
  Note notes[kMaxThreads];
  uint64_t number; /* of the job */
  alignas(64) std::atomic<int64_t> done;
  alignas(64) std::atomic<uint32_t> news;
  std::atomic<int32_t> sleepers;
  std::atomic<bool> is_stopping;
  Ahead ahead;
  Reader caller;
  vk_task task;
  void *job;
  pthread_t threads[kMaxThreads];
  Buffer shared[POOL_PIECES];
  Buffer scratch[kMaxThreads];
};

namespace {

struct Start {
  vk_pool *pool;
  int worker;
};

/* The first of a job's tasks that are the worker's own, of `size` workers. */
int64_t first_of(int64_t count, int64_t worker, int64_t size) { return count * worker / size; }

/* Asks for a few lines more of what comes next; false when enough is asked for. */
bool read_ahead(vk_pool *pool, int worker, Reader *reader) {
  const Ahead &ahead = pool->ahead;
  uint32_t number = ahead.number.load(std::memory_order_acquire);
  if (number != reader->number) {
    int64_t tasks = ahead.tasks.load(std::memory_order_relaxed);
    int64_t nbytes = ahead.task_bytes.load(std::memory_order_relaxed);
    int64_t first = first_of(tasks, worker, pool->size), end = first_of(tasks, worker + 1, pool->size);
    int64_t wanted = (end - first) * nbytes < kAheadBytes ? (end - first) * nbytes : kAheadBytes;
    reader->number = number;
    reader->at = ahead.rows.load(std::memory_order_relaxed) + first * nbytes;
    reader->end = reader->at + wanted;
  }
  for (int line = 0; line < 8 && reader->at < reader->end; line++, reader->at += kLine)
    __builtin_prefetch(reader->at, 0, 2);
  return reader->at < reader->end;
}

/* Takes the tasks of a range until none is left. */
void work_through(vk_pool *pool, Range *range, int worker) {
  int64_t done = 0;
  while (true) {
    uint64_t seen = range->word.load(std::memory_order_acquire);
    if ((seen & kMask) >= seen >> kBits) break;
    uint64_t ticket = range->word.fetch_add(1, std::memory_order_acq_rel);
    if ((ticket & kMask) >= ticket >> kBits) break;
    pool->task(pool->job, int64_t(ticket & kMask), worker);
    done++;
  }
  if (done) pool->done.fetch_add(done, std::memory_order_release);
}

/* The worker's own tasks first, then those that others have not come to. */
void work(vk_pool *pool, int worker) {
  for (int at = 0; at < pool->size; at++) work_through(pool, &pool->ranges[(worker + at) % pool->size], worker);
}

/* Returns the number of the news after `seen`. */
uint32_t wait_for_news(vk_pool *pool, int worker, Reader *reader, uint32_t seen) {
  int64_t until = now() + kSpinNanoseconds;
  for (int turn = 1;; turn++) {
    uint32_t news = pool->news.load(std::memory_order_acquire);
    if (news != seen) return news;
    if (!read_ahead(pool, worker, reader)) relax();
    if (turn % 64 == 0 && now() > until) {
      pool->sleepers.fetch_add(1);
      if (pool->news.load() == seen) futex(&pool->news, FUTEX_WAIT_PRIVATE, seen);
      pool->sleepers.fetch_sub(1);
      until = now() + kSpinNanoseconds;
    }
  }
}

void *run_worker(void *argument) {
  Start start = *static_cast<Start *>(argument);
  free(argument);
  Reader reader;
  for (uint32_t seen = 0; !start.pool->is_stopping.load(std::memory_order_acquire);) {
    seen = wait_for_news(start.pool, start.worker, &reader, seen);
    work(start.pool, start.worker);
  }
  return nullptr;
}

void wake(vk_pool *pool) {
  pool->news.fetch_add(1);
  if (pool->sleepers.load() > 0) futex(&pool->news, FUTEX_WAKE_PRIVATE, kMaxThreads);
}

void *grown(Buffer *buffer, size_t nbytes) {
  if (buffer->nbytes < nbytes) {
    free(buffer->data);
    size_t rounded = (nbytes + 4095) / 4096 * 4096;
    buffer->data = aligned_alloc(64, rounded);
    buffer->nbytes = buffer->data ? rounded : 0;
  }
  return buffer->data;
}

}  // namespace

/* Returns a pool of `size` threads, the caller included; NULL when the system refuses, or the processor has not the
 * instruction set. */
VK_API vk_pool *vk_pool_create(int32_t size, int32_t instruction_set) {
  const vk_functions *functions = functions_of(instruction_set);
  if (!functions) return nullptr;
  vk_pool *pool = static_cast<vk_pool *>(aligned_alloc(64, (sizeof(vk_pool) + 63) / 64 * 64));
  if (!pool) return nullptr;
  __builtin_memset(static_cast<void *>(pool), 0, sizeof *pool);
  pool->size = 1;
  pool->functions = functions;
  for (int worker = 1; worker < size && worker < kMaxThreads; worker++) {
    Start *start = static_cast<Start *>(malloc(sizeof *start));
    if (!start) break;
    *start = {pool, worker};
    if (pthread_create(&pool->threads[worker], nullptr, run_worker, start) != 0) {
      free(start);
      break;
    }
    pool->size++;
  }
  return pool;
}

/* Ends the threads and frees the pool. No job may be running. */
VK_API void vk_pool_destroy(vk_pool *pool) {
  if (!pool) return;
  pool->is_stopping.store(true, std::memory_order_release);
  wake(pool);
  for (int worker = 1; worker < pool->size; worker++) pthread_join(pool->threads[worker], nullptr);
  for (int worker = 0; worker < pool->size; worker++) free(pool->scratch[worker].data);
  for (Buffer &buffer : pool->shared) free(buffer.data);
  free(pool);
}

int pool_size(const vk_pool *pool) { return pool->size; }

const vk_functions *pool_functions(const vk_pool *pool) { return pool->functions; }

void pool_run(vk_pool *pool, vk_task task, void *job, int64_t count, int64_t nanoseconds) {
  bool is_alone = count == 1 || nanoseconds < kAloneNanoseconds;
  int workers = is_alone ? 1 : pool->size;
  pool->task = task;
  pool->job = job;
  pool->number++;
  pool->done.store(0, std::memory_order_relaxed);
  for (int worker = 0; worker < workers; worker++) {
    uint64_t first = uint64_t(first_of(count, worker, workers)), end = uint64_t(first_of(count, worker + 1, workers));
    pool->ranges[worker].word.store(end << kBits | first, std::memory_order_release);
  }
  if (workers > 1) wake(pool);
  work(pool, 0);
  for (int turn = 1; pool->done.load(std::memory_order_acquire) < count; turn++) {
    if (!read_ahead(pool, 0, &pool->caller)) relax();
    if (turn % 4096 == 0) sched_yield();
  }
}

bool pool_is_next(const vk_pool *pool, int worker, int64_t task) {
  uint64_t word = pool->ranges[worker].word.load(std::memory_order_relaxed);
  return int64_t(word & kMask) == task && task < int64_t(word >> kBits);
}

int64_t pool_note(const vk_pool *pool, int worker, int64_t task) {
  const Note &note = pool->notes[worker];
  return note.job == pool->number && note.task == task ? note.note : 0;
}

void pool_take_note(vk_pool *pool, int worker, int64_t task, int64_t note) {
  pool->notes[worker] = {pool->number, task, note};
}

void pool_expect(vk_pool *pool, const char *rows, int64_t task_bytes, int64_t tasks) {
  pool->ahead.rows.store(rows, std::memory_order_relaxed);
  pool->ahead.task_bytes.store(task_bytes, std::memory_order_relaxed);
  pool->ahead.tasks.store(tasks, std::memory_order_relaxed);
  pool->ahead.number.fetch_add(1, std::memory_order_release);
}

void *pool_shared(vk_pool *pool, int piece, size_t nbytes) { return grown(&pool->shared[piece], nbytes); }

bool pool_reserve(vk_pool *pool, size_t nbytes) {
  for (int worker = 0; worker < pool->size; worker++)
    if (!grown(&pool->scratch[worker], nbytes)) return false;
  return true;
}

void *pool_scratch(const vk_pool *pool, int worker) { return pool->scratch[worker].data; }
