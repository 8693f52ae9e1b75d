/* The machine: memory, streams as queues, and the race checker. The runtime's functions are in api.c. */
#define _GNU_SOURCE
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define POISON 0xFF /* NaN in every float type */

enum { COPY, FILL, WAIT, MARK };

typedef struct Operation {
    int kind, value, on;
    char *destination;
    const char *source;
    size_t nbytes;
    uint64_t sequence, until;
    struct Operation *next;
} Operation;

typedef struct {
    int is_open, is_blocking;
    Operation *head, *tail;
    uint64_t issued, done;
    Clock clock;
} Stream;

typedef struct {
    uint64_t address, nbytes, is_copy;
} Crossing;

uint64_t counters[NUM_COUNTERS];
uint64_t device_total = 1ull << 33, pinned_limit = 1ull << 33;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Stream streams[MAX_STREAMS] = {[HOST] = {.is_open = 1}, [DEFAULT_STREAM] = {.is_open = 1, .is_blocking = 1}};
static Region *regions;
static int order = LAZY, is_guarded, is_aliased, open_kernels;
static unsigned randomness = 1;
static long allocations_until_failure = -1;
static char race_log[16384];
static Crossing *crossings;
static size_t num_crossings, room_for_crossings;

void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }

/* ---- memory ---- */

static int inside(const char *start, const Region *region, const char *address, size_t nbytes) {
    return start && address >= start && address + nbytes <= start + region->nbytes;
}

Region *region_of(const void *address, size_t nbytes) {
    for (Region *region = regions; region; region = region->next)
        if (inside(region->device, region, address, nbytes) || inside(region->host, region, address, nbytes)) return region;
    return NULL;
}

static size_t offset_in(const Region *region, const char *address) {
    return inside(region->device, region, address, 1) ? (size_t)(address - region->device) : (size_t)(address - region->host);
}

static char *inner(const void *address) {
    Region *region = region_of(address, 1);
    return region ? region->inner + offset_in(region, address) : (char *)address;
}

static char *map(int file, size_t nbytes, int protection) {
    char *address = mmap(NULL, nbytes, protection, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    return address == MAP_FAILED ? NULL : address;
}

/* Device memory under guard is closed to the CPU but for kernels; aliased host memory has another device address. */
static void map_region(Region *region, int needs_two) {
    int file = needs_two ? memfd_create("fakecuda", 0) : -1;
    if (needs_two && ftruncate(file, region->mapped)) abort();
    region->inner = map(file, region->mapped, PROT_READ | PROT_WRITE);
    region->device = needs_two ? map(file, region->mapped, PROT_READ | PROT_WRITE) : region->inner;
    if (needs_two) close(file);
    if (region->kind == PINNED_MEMORY) region->host = region->inner;
}

static Region *add_region(Region *region) {
    region->next = regions;
    regions = region;
    counters[REGIONS]++;
    return region;
}

Region *new_region(int kind, size_t nbytes, unsigned flags) {
    Region *region = calloc(1, sizeof *region);
    *region = (Region){.kind = kind, .flags = flags, .nbytes = nbytes, .mapped = (nbytes + PAGE - 1) / PAGE * PAGE};
    map_region(region, kind == DEVICE_MEMORY ? is_guarded : is_aliased);
    memset(region->inner, POISON, region->mapped);
    if (kind == DEVICE_MEMORY && is_guarded && !open_kernels) mprotect(region->device, region->mapped, PROT_NONE);
    counters[kind == DEVICE_MEMORY ? DEVICE_BYTES : PINNED_BYTES] += region->mapped;
    return add_region(region);
}

Region *register_region(void *address, size_t nbytes, unsigned flags) {
    Region *region = calloc(1, sizeof *region);
    *region = (Region){REGISTERED_MEMORY, flags, address, address, address, nbytes, nbytes, NULL, NULL};
    return add_region(region);
}

void drop_region(Region *region) {
    Region **link = &regions;
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    for (Access *access = region->accesses, *next; access; access = next) {
        next = access->next;
        free(access);
    }
    if (region->kind != REGISTERED_MEMORY) {
        counters[region->kind == DEVICE_MEMORY ? DEVICE_BYTES : PINNED_BYTES] -= region->mapped;
        if (region->device != region->inner) munmap(region->device, region->mapped);
        munmap(region->inner, region->mapped);
    }
    counters[REGIONS]--;
    free(region);
}

int allocation_fails(void) {
    counters[ALLOCATIONS]++;
    return allocations_until_failure >= 0 && allocations_until_failure-- == 0;
}

void note_crossing(const void *address, size_t nbytes, int is_copy) {
    if (num_crossings == room_for_crossings) {
        room_for_crossings = 2 * room_for_crossings + 1024;
        crossings = realloc(crossings, room_for_crossings * sizeof *crossings);
    }
    crossings[num_crossings++] = (Crossing){(uint64_t)address, nbytes, (uint64_t)is_copy};
}

/* ---- races ---- */

static void join(Clock *clock, const Clock *other) {
    for (int i = 0; i < MAX_STREAMS; i++)
        if (other->of[i] > clock->of[i]) clock->of[i] = other->of[i];
}

static void report_race(const Region *region, size_t low, size_t high, int stream, const char *what, const Access *other) {
    size_t used = strlen(race_log);
    counters[RACES]++;
    snprintf(race_log + used, sizeof race_log - used,
             "%s of bytes %zu to %zu of region %p on stream %d is not ordered after %s on stream %d, operation %llu\n", what,
             low, high, (void *)region->device, stream, other->what, other->stream, (unsigned long long)other->sequence);
}

/* Record an access of the newest operation of a stream, and report earlier ones that it may collide with. */
void touch(int stream, const void *address, size_t nbytes, int is_write, const char *what) {
    Region *region = nbytes ? region_of(address, 1) : NULL;
    if (!region) return;
    size_t low = offset_in(region, address), high = low + nbytes;
    const Clock *clock = &streams[stream].clock;
    for (Access **link = &region->accesses; *link;) {
        Access *access = *link;
        int overlaps = access->low < high && low < access->high;
        int is_ordered = access->stream == stream || clock->of[access->stream] >= access->sequence;
        if (overlaps && (is_write || access->is_write) && !is_ordered) report_race(region, low, high, stream, what, access);
        int is_covered = is_ordered && low <= access->low && access->high <= high;
        if (is_covered && (is_write || (access->stream == stream && !access->is_write))) {
            *link = access->next;
            free(access);
        } else {
            link = &access->next;
        }
    }
    Access *access = calloc(1, sizeof *access);
    *access = (Access){low, high, stream, is_write, streams[stream].issued, what, region->accesses};
    region->accesses = access;
}

/* ---- streams ---- */

static void run_one(Stream *stream) {
    Operation *operation = stream->head;
    stream->head = operation->next;
    if (!stream->head) stream->tail = NULL;
    if (operation->kind == COPY) memmove(inner(operation->destination), inner(operation->source), operation->nbytes);
    if (operation->kind == FILL) memset(inner(operation->destination), operation->value, operation->nbytes);
    if (operation->kind == WAIT) run_until(operation->on, operation->until);
    stream->done = operation->sequence;
    free(operation);
}

void run_until(int stream, uint64_t sequence) {
    while (streams[stream].head && streams[stream].done < sequence) run_one(&streams[stream]);
}

void run_everything(void) {
    for (int i = DEFAULT_STREAM; i < MAX_STREAMS; i++) {
        run_until(i, streams[i].issued);
        join(&streams[HOST].clock, &streams[i].clock);
    }
}

/* Let time pass: nothing in lazy order, everything in eager order, a few operations anywhere in random order. */
void advance(void) {
    if (order == EAGER)
        for (int i = DEFAULT_STREAM; i < MAX_STREAMS; i++) run_until(i, streams[i].issued);
    if (order == RANDOM)
        for (int k = 0; k < 4; k++) {
            randomness = randomness * 1103515245u + 12345u;
            int first = (randomness >> 16) % MAX_STREAMS, i = 0;
            while (i < MAX_STREAMS && !streams[(first + i) % MAX_STREAMS].head) i++;
            if (i < MAX_STREAMS) run_one(&streams[(first + i) % MAX_STREAMS]);
        }
}

static Operation *queue(int stream, int kind) {
    Stream *it = &streams[stream];
    Operation *operation = calloc(1, sizeof *operation);
    operation->kind = kind;
    operation->sequence = ++it->issued;
    join(&it->clock, &streams[HOST].clock); /* the CPU issues it, so it comes after what the CPU knows to be done */
    it->clock.of[stream] = it->issued;
    if (it->tail) it->tail->next = operation;
    else it->head = operation;
    return it->tail = operation;
}

void queue_copy(int stream, void *destination, const void *source, size_t nbytes) {
    Operation *operation = queue(stream, COPY);
    operation->destination = destination;
    operation->source = source;
    operation->nbytes = nbytes;
    counters[COPIED_BYTES] += nbytes;
    touch(stream, source, nbytes, 0, "a copy's read");
    touch(stream, destination, nbytes, 1, "a copy's write");
}

void queue_fill(int stream, void *destination, int value, size_t nbytes) {
    Operation *operation = queue(stream, FILL);
    operation->destination = destination;
    operation->value = value;
    operation->nbytes = nbytes;
    touch(stream, destination, nbytes, 1, "a fill");
}

void queue_wait(int stream, int on, uint64_t sequence, const Clock *clock) {
    Operation *operation = queue(stream, WAIT);
    operation->on = on;
    operation->until = sequence;
    join(&streams[stream].clock, clock);
    streams[stream].clock.of[stream] = streams[stream].issued;
}

uint64_t queue_mark(int stream) { return queue(stream, MARK)->sequence; }

/* The legacy default stream waits for every blocking stream, and they for it. */
void join_default(int stream) {
    if (stream != DEFAULT_STREAM) {
        if (streams[stream].is_blocking && streams[DEFAULT_STREAM].issued)
            queue_wait(stream, DEFAULT_STREAM, streams[DEFAULT_STREAM].issued, &streams[DEFAULT_STREAM].clock);
        return;
    }
    for (int i = DEFAULT_STREAM + 1; i < MAX_STREAMS; i++)
        if (streams[i].is_open && streams[i].is_blocking && streams[i].issued)
            queue_wait(DEFAULT_STREAM, i, streams[i].issued, &streams[i].clock);
}

void host_waits(int stream, uint64_t sequence, const Clock *clock) {
    run_until(stream, sequence);
    join(&streams[HOST].clock, clock);
}

int is_done(int stream, uint64_t sequence) { return streams[stream].done >= sequence; }
uint64_t last_of(int stream) { return streams[stream].issued; }
const Clock *clock_of(int stream) { return &streams[stream].clock; }

/* Handles 0, 1 and 2 are the default stream's; others carry the stream's number. */
int stream_of(cudaStream_t handle, int *stream) {
    uint64_t number = (uint64_t)handle;
    *stream = number <= 2 ? DEFAULT_STREAM : (int)(number - 0x5000);
    if (number <= 2) return cudaSuccess;
    int is_known = number > 0x5000 + DEFAULT_STREAM && number < 0x5000 + MAX_STREAMS && streams[*stream].is_open;
    return is_known ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

int open_stream(int is_blocking) {
    for (int i = DEFAULT_STREAM + 1; i < MAX_STREAMS; i++)
        if (!streams[i].is_open) {
            streams[i].is_open = 1;
            streams[i].is_blocking = is_blocking;
            counters[STREAMS]++;
            return i;
        }
    return 0;
}

void close_stream(int stream) {
    run_until(stream, streams[stream].issued);
    streams[stream].is_open = streams[stream].is_blocking = 0;
    counters[STREAMS]--;
}

/* ---- what tests call ---- */

static void protect(int protection) {
    for (Region *region = regions; region; region = region->next)
        if (region->kind == DEVICE_MEMORY && region->device != region->inner) mprotect(region->device, region->mapped, protection);
}

EXPORT void fake_set_order(int wanted, unsigned seed) {
    lock();
    order = wanted;
    randomness = seed | 1;
    unlock();
}

EXPORT void fake_set_memory(int guarded, int aliased) {
    lock();
    is_guarded = guarded;
    is_aliased = aliased;
    unlock();
}

EXPORT void fake_set_limits(uint64_t device, uint64_t pinned) {
    lock();
    device_total = device;
    pinned_limit = pinned;
    unlock();
}

EXPORT void fake_fail_allocation(long number) {
    lock();
    allocations_until_failure = number;
    unlock();
}

EXPORT uint64_t fake_counter(int which) {
    lock();
    uint64_t value = counters[which];
    unlock();
    return value;
}

EXPORT const char *fake_races(void) { return race_log; }

EXPORT void fake_forget(void) {
    lock();
    counters[RACES] = counters[PAGEABLE_COPIES] = counters[COPIED_BYTES] = 0;
    race_log[0] = 0;
    num_crossings = 0;
    unlock();
}

EXPORT int fake_kind_of(const void *address) {
    lock();
    Region *region = region_of(address, 1);
    int kind = region ? region->kind : 0;
    unlock();
    return kind;
}

/* A kernel: runs all that its stream is ordered after, and opens device memory until fake_kernel_end. */
EXPORT int fake_kernel_begin(cudaStream_t handle) {
    int stream;
    lock();
    if (stream_of(handle, &stream)) abort();
    join_default(stream);
    run_until(stream, queue_mark(stream));
    if (open_kernels++ == 0) protect(PROT_READ | PROT_WRITE);
    unlock();
    return stream;
}

/* times: how often each byte is read, for what is read across the bus. */
EXPORT void fake_kernel_touch(int stream, const void *address, size_t nbytes, int is_write, size_t times) {
    lock();
    Region *region = region_of(address, 1);
    touch(stream, address, nbytes, is_write, is_write ? "a kernel's write" : "a kernel's read");
    if (region && region->kind != DEVICE_MEMORY && !is_write)
        for (size_t i = 0; i < times; i++) note_crossing(address, nbytes, 0);
    unlock();
}

EXPORT void fake_kernel_end(void) {
    lock();
    if (--open_kernels == 0) protect(PROT_NONE);
    advance();
    unlock();
}

EXPORT size_t fake_crossings(uint64_t *rows, size_t room) {
    lock();
    for (size_t i = 0; i < num_crossings && i < room; i++)
        memcpy(rows + 3 * i, &crossings[i], sizeof *crossings);
    size_t found = num_crossings;
    unlock();
    return found;
}
