/* Device memory: host memory that counts against limits. */
#include "acme.h"

#include <stdlib.h>
#include <string.h>

void acme_pool_init(acme_pool *pool, acme_pool *parent, uint64_t limit) {
    *pool = (acme_pool){.parent = parent, .limit = limit};
    pthread_mutex_init(&pool->lock, NULL);
}

void acme_pool_end(acme_pool *pool) { pthread_mutex_destroy(&pool->lock); }

uint64_t acme_chunks(uint64_t bytes) {
    uint64_t chunks = bytes / ACME_CHUNK_BYTES + (bytes % ACME_CHUNK_BYTES != 0);
    return (chunks ? chunks : 1) * ACME_CHUNK_BYTES;
}

static void give_back(acme_pool *pool, const acme_pool *end, uint64_t bytes) {
    for (; pool != end; pool = pool->parent) {
        pthread_mutex_lock(&pool->lock);
        pool->used -= bytes;
        pthread_mutex_unlock(&pool->lock);
    }
}

static bool take(acme_pool *pool, uint64_t bytes, uint64_t *left) {
    pthread_mutex_lock(&pool->lock);
    *left = pool->limit - pool->used;
    bool fits = bytes <= *left;
    if (fits) pool->used += bytes;
    if (pool->used > pool->peak) pool->peak = pool->used;
    pthread_mutex_unlock(&pool->lock);
    return fits;
}

NNAdapterStatus acme_allocate(acme_pool *pool, uint64_t bytes, NNAdapterMemory **memory, NNAdapterError *error) {
    uint64_t left = 0, counted = bytes > ACME_DEVICE_BYTES ? bytes : acme_chunks(bytes);
    for (acme_pool *ancestor = pool; ancestor; ancestor = ancestor->parent)
        if (!take(ancestor, counted, &left)) {
            give_back(pool, ancestor, counted);
            return acme_fail(error, NNADAPTER_OUT_OF_MEMORY,
                             "%llu bytes were asked for and %llu are left; free some, or raise the option memory_bytes",
                             (unsigned long long)counted, (unsigned long long)left);
        }
    NNAdapterMemory *new_memory = malloc(sizeof *new_memory);
    char *data = malloc(bytes ? bytes : 1);
    if (!new_memory || !data) {
        free(new_memory);
        free(data);
        give_back(pool, NULL, counted);
        return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no %llu bytes left", (unsigned long long)bytes);
    }
    *new_memory = (NNAdapterMemory){.pool = pool, .bytes = counted, .usable = bytes, .data = data};
    *memory = new_memory;
    return NNADAPTER_OK;
}

void acme_free(NNAdapterMemory *memory) {
    if (!memory) return;
    give_back(memory->pool, NULL, memory->bytes);
    free(memory->data);
    free(memory);
}

static NNAdapterStatus allocate(NNAdapterDevice *device, uint64_t bytes, NNAdapterMemory **memory,
                                NNAdapterError *error) {
    return acme_allocate(&device->pool, bytes, memory, error);
}

typedef struct copy {
    acme_task task;
    void *target;
    const void *source;
    uint64_t bytes;
} copy;

static NNAdapterStatus run_copy(acme_task *task, NNAdapterError *error) {
    copy *work = (copy *)task;
    (void)error;
    if (work->bytes) memmove(work->target, work->source, work->bytes);
    return NNADAPTER_OK;
}

static NNAdapterStatus start_copy(copy what, NNAdapterStream *stream, NNAdapterError *error) {
    what.task.run = run_copy;
    if (!stream) return run_copy(&what.task, error);
    copy *work = malloc(sizeof *work);
    if (!work) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a copy");
    *work = what;
    acme_submit(stream, &work->task);
    return NNADAPTER_OK;
}

static NNAdapterStatus check(const NNAdapterMemory *memory, uint64_t offset, uint64_t bytes, NNAdapterError *error) {
    if (offset <= memory->usable && bytes <= memory->usable - offset) return NNADAPTER_OK;
    return acme_fail(error, NNADAPTER_INVALID_ARGUMENT, "%llu bytes at %llu lie outside of memory of %llu bytes",
                     (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)memory->usable);
}

static NNAdapterStatus copy_in(NNAdapterMemory *memory, uint64_t offset, const void *data, uint64_t bytes,
                               NNAdapterStream *stream, NNAdapterError *error) {
    NNAdapterStatus status = check(memory, offset, bytes, error);
    if (status) return status;
    return start_copy((copy){.target = memory->data + offset, .source = data, .bytes = bytes}, stream, error);
}

static NNAdapterStatus copy_out(NNAdapterMemory *memory, uint64_t offset, void *data, uint64_t bytes,
                                NNAdapterStream *stream, NNAdapterError *error) {
    NNAdapterStatus status = check(memory, offset, bytes, error);
    if (status) return status;
    return start_copy((copy){.target = data, .source = memory->data + offset, .bytes = bytes}, stream, error);
}

static NNAdapterStatus copy_between(NNAdapterMemory *target, uint64_t target_offset, NNAdapterMemory *source,
                                    uint64_t source_offset, uint64_t bytes, NNAdapterStream *stream,
                                    NNAdapterError *error) {
    NNAdapterStatus status = check(target, target_offset, bytes, error);
    if (!status) status = check(source, source_offset, bytes, error);
    if (status) return status;
    copy what = {.target = target->data + target_offset, .source = source->data + source_offset, .bytes = bytes};
    return start_copy(what, stream, error);
}

static NNAdapterStatus statistics(NNAdapterDevice *device, NNAdapterMemoryStatistics *result, NNAdapterError *error) {
    (void)error;
    pthread_mutex_lock(&device->pool.lock);
    result->total_bytes = device->pool.limit;
    result->used_bytes = device->pool.used;
    result->peak_bytes = device->pool.peak;
    pthread_mutex_unlock(&device->pool.lock);
    return NNADAPTER_OK;
}

static uint64_t minimum_chunk(NNAdapterDevice *device) {
    (void)device;
    return ACME_CHUNK_BYTES;
}

const NNAdapterMemoryFunctions acme_memory_functions = {
    ACME_HEAD(NNAdapterMemoryFunctions),
    .allocate = allocate,
    .free_memory = acme_free,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_between = copy_between,
    .statistics = statistics,
    .minimum_chunk = minimum_chunk,
};
