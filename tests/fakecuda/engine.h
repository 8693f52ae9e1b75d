/* A machine with one imagined CUDA device, for tests on machines without one.
 *
 * Host memory stands in for the device. A stream is a queue of operations that run as late as its order allows (lazy),
 * at once (eager) or at random moments, so that code which forgets to wait reads what is not there yet. Beside that,
 * vector clocks find accesses that no event orders, whatever the order of execution happened to be.
 *
 * Not modelled: kernels (a test reports what it touches), graphs, time, several devices.
 * The types and numbers of CUDA's headers are declared here, because the tests must build without a CUDA toolkit;
 * the real bindings hold them to account in a test.
 */
#ifndef FAKECUDA_ENGINE_H
#define FAKECUDA_ENGINE_H

#include <stddef.h>
#include <stdint.h>

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
};
enum { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
enum { cudaHostAllocMapped = 2, cudaHostAllocFlags = 7, cudaStreamNonBlocking = 1, cudaEventFlags = 7, cudaEventDisableTiming = 2 };
enum {
    cudaDevAttrIntegrated = 18,
    cudaDevAttrCanMapHostMemory = 19,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
    cudaDevAttrHostRegisterSupported = 99,
    cudaDevAttrPageableMemoryAccessUsesHostPageTables = 100,
    cudaDevAttrHostRegisterReadOnlySupported = 113,
};

#define PAGE 4096ul
#define MAX_STREAMS 64
#define HOST 0           /* the pseudo-stream of what the CPU does */
#define DEFAULT_STREAM 1 /* the legacy default stream */

typedef struct {
    uint64_t of[MAX_STREAMS];
} Clock;

/* One access that later ones must be ordered after. */
typedef struct Access {
    size_t low, high;
    int stream, is_write;
    uint64_t sequence;
    const char *what;
    struct Access *next;
} Access;

enum { DEVICE_MEMORY = 1, PINNED_MEMORY, REGISTERED_MEMORY };

typedef struct Region {
    int kind;
    unsigned flags;
    char *host;   /* where the CPU sees it; NULL for device memory */
    char *device; /* where the device sees it */
    char *inner;  /* where this engine reads and writes it */
    size_t nbytes, mapped;
    Access *accesses;
    struct Region *next;
} Region;

enum { LAZY, EAGER, RANDOM };

/* What the tests read; the order is that of `COUNTERS` in machine.py. */
enum { RACES, PAGEABLE_COPIES, COPIED_BYTES, DEVICE_BYTES, PINNED_BYTES, REGIONS, STREAMS, EVENTS, ALLOCATIONS, NUM_COUNTERS };

extern uint64_t counters[NUM_COUNTERS];
extern uint64_t device_total, pinned_limit;

void lock(void);
void unlock(void);
Region *region_of(const void *address, size_t nbytes);
Region *new_region(int kind, size_t nbytes, unsigned flags);
Region *register_region(void *address, size_t nbytes, unsigned flags);
void drop_region(Region *region);
int allocation_fails(void);
void note_crossing(const void *address, size_t nbytes, int is_copy);

int stream_of(cudaStream_t handle, int *stream);
int open_stream(int is_blocking);
void close_stream(int stream);
void queue_copy(int stream, void *destination, const void *source, size_t nbytes);
void queue_fill(int stream, void *destination, int value, size_t nbytes);
void queue_wait(int stream, int on, uint64_t sequence, const Clock *clock);
uint64_t queue_mark(int stream);
void touch(int stream, const void *address, size_t nbytes, int is_write, const char *what);
void run_until(int stream, uint64_t sequence);
void run_everything(void);
void host_waits(int stream, uint64_t sequence, const Clock *clock);
int is_done(int stream, uint64_t sequence);
uint64_t last_of(int stream);
const Clock *clock_of(int stream);
void join_default(int stream);
void advance(void);

#endif
