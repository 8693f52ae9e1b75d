/* The functions of the CUDA runtime that the fake answers, with the runtime's argument checks. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define EVENT_MAGIC 0xE7E27u
#define NUM_ATTRIBUTES 256
#define NAME_BYTES 256

typedef struct {
    unsigned magic;
    int is_recorded, has_time, stream;
    uint64_t sequence;
    Clock clock;
} Event;

/* The part of cudaPointerAttributes that is written. */
typedef struct {
    int type, device;
    void *device_pointer, *host_pointer;
} PointerAttributes;

static int attributes[NUM_ATTRIBUTES] = {
    [cudaDevAttrCanMapHostMemory] = 1,
    [cudaDevAttrAsyncEngineCount] = 3,
    [cudaDevAttrUnifiedAddressing] = 1,
    [cudaDevAttrCanUseHostPointerForRegisteredMem] = 1,
    [cudaDevAttrHostRegisterSupported] = 1,
};
static __thread cudaError_t last_error;
static int probe_error, is_capturing;

/* Leave the engine with an error, which the runtime remembers for this thread. */
static cudaError_t leave(cudaError_t error) {
    if (error && error != cudaErrorNotReady) last_error = error;
    unlock();
    return error;
}

#define ENTER lock()
#define STREAM(handle) \
    int stream, stream_error = stream_of(handle, &stream); \
    if (stream_error) return leave(stream_error)
#define EVENT(handle) \
    Event *event = handle; \
    if (!event || event->magic != EVENT_MAGIC) return leave(cudaErrorInvalidResourceHandle)

/* ---- the device ---- */

API cudaError_t cudaGetDeviceCount(int *count) {
    ENTER;
    if (probe_error) return leave(probe_error);
    *count = 1;
    return leave(cudaSuccess);
}

API cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device) {
    ENTER;
    return leave(device ? cudaErrorInvalidDevice : cudaSuccess);
}

API cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void) { return last_error; }

API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER;
    if (device) return leave(cudaErrorInvalidDevice);
    if (attribute < 0 || attribute >= NUM_ATTRIBUTES) return leave(cudaErrorInvalidValue);
    *value = attributes[attribute];
    return leave(cudaSuccess);
}

/* Only the name, which is the first field of cudaDeviceProp. */
API cudaError_t cudaGetDeviceProperties(void *properties, int device) {
    ENTER;
    if (device) return leave(cudaErrorInvalidDevice);
    memset(properties, 0, NAME_BYTES);
    strcpy(properties, "Imagined Device");
    return leave(cudaSuccess);
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER;
    *total_bytes = device_total;
    *free_bytes = device_total - counters[DEVICE_BYTES];
    return leave(cudaSuccess);
}

API cudaError_t cudaDeviceSynchronize(void) {
    ENTER;
    run_everything();
    return leave(cudaSuccess);
}

/* ---- memory ---- */

API cudaError_t cudaMalloc(void **address, size_t nbytes) {
    ENTER;
    *address = NULL;
    if (!nbytes) return leave(cudaSuccess);
    if (allocation_fails() || counters[DEVICE_BYTES] + nbytes > device_total) return leave(cudaErrorMemoryAllocation);
    *address = new_region(DEVICE_MEMORY, nbytes, 0)->device;
    return leave(cudaSuccess);
}

API cudaError_t cudaHostAlloc(void **address, size_t nbytes, unsigned flags) {
    ENTER;
    *address = NULL;
    if (flags & ~(unsigned)cudaHostAllocFlags) return leave(cudaErrorInvalidValue);
    if (!nbytes) return leave(cudaSuccess);
    if (allocation_fails() || counters[PINNED_BYTES] + nbytes > pinned_limit) return leave(cudaErrorMemoryAllocation);
    *address = new_region(PINNED_MEMORY, nbytes, flags)->host;
    return leave(cudaSuccess);
}

/* Freeing waits for the device. */
static cudaError_t free_region(void *address, int kind, cudaError_t otherwise) {
    ENTER;
    if (!address) return leave(cudaSuccess);
    Region *region = region_of(address, 1);
    char *start = region && kind == DEVICE_MEMORY ? region->device : region ? region->host : NULL;
    if (!region || region->kind != kind || start != address) return leave(otherwise);
    run_everything();
    drop_region(region);
    return leave(cudaSuccess);
}

API cudaError_t cudaFree(void *address) { return free_region(address, DEVICE_MEMORY, cudaErrorInvalidValue); }
API cudaError_t cudaFreeHost(void *address) { return free_region(address, PINNED_MEMORY, cudaErrorInvalidValue); }

API cudaError_t cudaHostRegister(void *address, size_t nbytes, unsigned flags) {
    ENTER;
    if (!address || !nbytes || flags > 15) return leave(cudaErrorInvalidValue);
    if (region_of(address, 1)) return leave(cudaErrorHostMemoryAlreadyRegistered);
    register_region(address, nbytes, flags);
    return leave(cudaSuccess);
}

API cudaError_t cudaHostUnregister(void *address) {
    return free_region(address, REGISTERED_MEMORY, cudaErrorHostMemoryNotRegistered);
}

API cudaError_t cudaHostGetFlags(unsigned *flags, void *address) {
    ENTER;
    Region *region = region_of(address, 1);
    if (!region || region->kind == DEVICE_MEMORY) return leave(cudaErrorInvalidValue);
    *flags = region->flags | cudaHostAllocMapped;
    return leave(cudaSuccess);
}

API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    ENTER;
    Region *region = region_of(host, 1);
    if (flags || !region || region->kind == DEVICE_MEMORY) return leave(cudaErrorInvalidValue);
    *device = region->device + ((char *)host - region->host);
    return leave(cudaSuccess);
}

API cudaError_t cudaPointerGetAttributes(PointerAttributes *found, const void *address) {
    ENTER;
    Region *region = region_of(address, 1);
    int type = !region ? cudaMemoryTypeUnregistered : region->kind == DEVICE_MEMORY ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    *found = (PointerAttributes){type, region ? 0 : -2, (void *)address, type == cudaMemoryTypeDevice ? NULL : (void *)address};
    return leave(cudaSuccess);
}

/* Whether the two ends of a copy are what its kind says: 0, or an error. */
static cudaError_t check_direction(const Region *to, const Region *from, int kind) {
    int to_device = to && to->kind == DEVICE_MEMORY, from_device = from && from->kind == DEVICE_MEMORY;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (kind == cudaMemcpyHostToDevice && (!to_device || from_device)) return cudaErrorInvalidValue;
    if (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) return cudaErrorInvalidValue;
    return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t nbytes, int kind, cudaStream_t handle) {
    ENTER;
    STREAM(handle);
    if (!nbytes) return leave(cudaSuccess);
    Region *to = region_of(destination, 1), *from = region_of(source, 1);
    cudaError_t error = check_direction(to, from, kind);
    if (error) return leave(error);
    if ((to && !region_of(destination, nbytes)) || (from && !region_of(source, nbytes))) return leave(cudaErrorInvalidValue);
    join_default(stream);
    queue_copy(stream, destination, source, nbytes);
    if (to && to->kind == DEVICE_MEMORY && (!from || from->kind != DEVICE_MEMORY)) note_crossing(source, nbytes, 1);
    if (to && from) advance();
    else {
        /* Pageable memory is staged before the call returns. */
        counters[PAGEABLE_COPIES]++;
        host_waits(stream, last_of(stream), clock_of(stream));
    }
    return leave(cudaSuccess);
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ENTER;
    STREAM(handle);
    join_default(stream);
    host_waits(stream, last_of(stream), clock_of(stream));
    return leave(cudaSuccess);
}

API cudaError_t cudaMemcpy(void *destination, const void *source, size_t nbytes, int kind) {
    cudaError_t error = cudaMemcpyAsync(destination, source, nbytes, kind, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}

API cudaError_t cudaMemsetAsync(void *destination, int value, size_t nbytes, cudaStream_t handle) {
    ENTER;
    STREAM(handle);
    if (!region_of(destination, nbytes)) return leave(cudaErrorInvalidValue);
    join_default(stream);
    queue_fill(stream, destination, value, nbytes);
    advance();
    return leave(cudaSuccess);
}

/* ---- streams and events ---- */

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
    ENTER;
    if (flags > cudaStreamNonBlocking) return leave(cudaErrorInvalidValue);
    int stream = open_stream(!(flags & cudaStreamNonBlocking));
    *handle = (cudaStream_t)(uintptr_t)(0x5000 + stream);
    return leave(stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    ENTER;
    STREAM(handle);
    if (stream == DEFAULT_STREAM) return leave(cudaErrorInvalidResourceHandle);
    close_stream(stream);
    return leave(cudaSuccess);
}

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
    ENTER;
    STREAM(handle);
    advance();
    return leave(is_done(stream, last_of(stream)) ? cudaSuccess : cudaErrorNotReady);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, int *status) {
    ENTER;
    STREAM(handle);
    *status = is_capturing;
    return leave(cudaSuccess);
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
    ENTER;
    EVENT(event_handle);
    STREAM(handle);
    if (flags > 1) return leave(cudaErrorInvalidValue);
    if (event->is_recorded) queue_wait(stream, event->stream, event->sequence, &event->clock);
    advance();
    return leave(cudaSuccess);
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
    ENTER;
    if (flags & ~(unsigned)cudaEventFlags) return leave(cudaErrorInvalidValue);
    Event *event = calloc(1, sizeof *event);
    event->magic = EVENT_MAGIC;
    event->has_time = !(flags & cudaEventDisableTiming);
    counters[EVENTS]++;
    *handle = event;
    return leave(cudaSuccess);
}

/* The memory is kept, so that a later use of the handle is an error and not a crash. */
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    ENTER;
    EVENT(handle);
    event->magic = 0;
    counters[EVENTS]--;
    return leave(cudaSuccess);
}

API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
    ENTER;
    EVENT(handle);
    STREAM(stream_handle);
    join_default(stream);
    event->sequence = queue_mark(stream);
    event->is_recorded = 1;
    event->stream = stream;
    event->clock = *clock_of(stream);
    advance();
    return leave(cudaSuccess);
}

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    ENTER;
    EVENT(handle);
    advance();
    int is_over = !event->is_recorded || is_done(event->stream, event->sequence);
    if (is_over && event->is_recorded) host_waits(event->stream, event->sequence, &event->clock);
    return leave(is_over ? cudaSuccess : cudaErrorNotReady);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    ENTER;
    EVENT(handle);
    if (event->is_recorded) host_waits(event->stream, event->sequence, &event->clock);
    return leave(cudaSuccess);
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    ENTER;
    Event *first = start, *second = end;
    int is_sound = first && second && first->magic == EVENT_MAGIC && second->magic == EVENT_MAGIC && first->has_time && second->has_time;
    if (!is_sound || !first->is_recorded || !second->is_recorded) return leave(cudaErrorInvalidResourceHandle);
    *ms = 1.0f;
    return leave(cudaSuccess);
}

/* ---- what tests call ---- */

API void fake_set_attribute(int attribute, int value) {
    lock();
    attributes[attribute] = value;
    unlock();
}

API void fake_set_probe_error(int error) {
    lock();
    probe_error = error;
    unlock();
}

API void fake_set_capturing(int status) {
    lock();
    is_capturing = status;
    unlock();
}
