/* Shared declarations of this driver. acme_c computes in float32 on the host, in place of a chip. */
#ifndef ACME_H
#define ACME_H

#include <pthread.h>
#include <stdbool.h>

#include "nnadapter_driver.h"

#ifndef ACME_RELEASE
#define ACME_RELEASE 1 /* increasing; a driver runs programs of older releases, and refuses newer ones */
#endif
#define ACME_TEXT_OF(number) #number
#define ACME_TEXT(number) ACME_TEXT_OF(number)
#define ACME_VERSION "1." ACME_TEXT(ACME_RELEASE)
#ifndef ACME_CHIP
#define ACME_CHIP "A1" /* up to 7 characters */
#endif
#define ACME_DEVICES 2
#define ACME_DEVICE_BYTES (INT64_C(1) << 30) /* 1 GiB of memory on each device */
#define ACME_CHUNK_BYTES 256                  /* allocation granularity */
#define ACME_MOST_AXES 8
#ifndef ACME_OPEN_SIZES
#define ACME_OPEN_SIZES NNADAPTER_SHAPES_DYNAMIC /* or _STATIC, for a device that compiles for static shapes */
#endif
#ifndef ACME_LARGEST_SIZE
#define ACME_LARGEST_SIZE 0 /* of NNADAPTER_SHAPES_BOUNDED */
#endif
#define ACME_HEAD(type) .size = sizeof(type), .version = NNADAPTER_VERSION

/* ---- memory.c: counted memory ---- */

typedef struct acme_pool { /* share of a device's memory; also counted in `parent`, unless null */
    struct acme_pool *parent;
    pthread_mutex_t lock;
    uint64_t limit, used, peak;
} acme_pool;

struct NNAdapterMemory {
    acme_pool *pool;
    uint64_t bytes; /* as counted */
    uint64_t usable;
    char *data;
};

void acme_pool_init(acme_pool *pool, acme_pool *parent, uint64_t limit);
void acme_pool_end(acme_pool *pool);
uint64_t acme_chunks(uint64_t bytes);
NNAdapterStatus acme_allocate(acme_pool *pool, uint64_t bytes, NNAdapterMemory **memory, NNAdapterError *error);
void acme_free(NNAdapterMemory *memory);
extern const NNAdapterMemoryFunctions acme_memory_functions;

/* ---- device.c ---- */

struct NNAdapterDevice {
    acme_pool pool;
    pthread_mutex_t lock; /* guards the list of streams */
    NNAdapterStream *streams;
};

NNAdapterStatus acme_list_devices(const NNAdapterDeviceInfo *const **, uint32_t *, NNAdapterError *);
NNAdapterStatus acme_open_device(const char *, NNAdapterDevice **, NNAdapterError *);
void acme_close_device(NNAdapterDevice *);
NNAdapterStatus acme_describe_device(NNAdapterDevice *, NNAdapterCapability *, NNAdapterError *);

/* ---- stream.c: a worker thread with a queue ---- */

extern const NNAdapterStreamFunctions acme_stream_functions;
/* Enqueue work on a stream, which frees `task` afterwards. */
typedef struct acme_task {
    struct acme_task *next;
    NNAdapterStatus (*run)(struct acme_task *task, NNAdapterError *error);
} acme_task;
void acme_submit(NNAdapterStream *stream, acme_task *task);

/* ---- errors.c ---- */

NNAdapterStatus acme_fail(NNAdapterError *error, NNAdapterStatus status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void acme_refuse(NNAdapterVerdict *verdict, int32_t reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
double acme_now(void); /* seconds */
NNAdapterStatus acme_go_on(const NNAdapterControl *control, double began, NNAdapterError *error);

/* ---- context.c, verdicts.c ---- */

struct NNAdapterContext {
    NNAdapterDevice *device;
    acme_pool pool;
    uint32_t off_count; /* disabled operations */
    char **off;
};

NNAdapterStatus acme_create_context(NNAdapterDevice *, uint32_t, const NNAdapterAttribute *const *,
                                    NNAdapterContext **, NNAdapterError *);
void acme_destroy_context(NNAdapterContext *);
NNAdapterStatus acme_supported(NNAdapterContext *, const NNAdapterModel *, NNAdapterVerdict *const *,
                               NNAdapterError *);
void acme_judge(const NNAdapterContext *, const NNAdapterModel *, const NNAdapterOperation *, NNAdapterVerdict *);
NNAdapterStatus acme_admit(NNAdapterContext *, const NNAdapterModel *, NNAdapterAdmission *, NNAdapterError *);

/* ---- operations.c: table of operations ---- */

typedef struct acme_tensor {
    float *data; /* null if absent or empty */
    uint32_t rank;
    const int64_t *dimensions;
    int64_t count;
} acme_tensor;

typedef void (*acme_kernel)(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output);

typedef struct acme_operation {
    NNAdapterOperationSupport support; /* type, data types, ranks */
    acme_kernel kernel;
    const char *const *attributes; /* supported attribute names, null-terminated */
} acme_operation;

extern const acme_operation acme_operations[];
extern const NNAdapterOperationSupport *const acme_support[];
extern const uint32_t acme_operation_count;
const acme_operation *acme_find(const char *type);
const NNAdapterAttribute *acme_attribute(const NNAdapterOperation *operation, const char *name);
const int64_t *acme_integers(const NNAdapterOperation *operation, const char *name);
int64_t acme_integer(const NNAdapterOperation *operation, const char *name);
bool acme_boolean(const NNAdapterOperation *operation, const char *name);
/* Strides in elements along `axes` axes of a result; 0 for broadcast axes. */
void acme_broadcast(const int64_t *dimensions, uint32_t rank, uint32_t axes, int64_t *steps);

void acme_convolution(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);
void acme_fully_connected(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);
void acme_mat_mul(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);
void acme_add(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);
void acme_relu(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);
void acme_max_pool(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);
void acme_average_pool(const NNAdapterOperation *, const acme_tensor *, const acme_tensor *);

/* ---- slots.c: temporaries that share memory ---- */

typedef struct acme_slots {
    int32_t *slot_of; /* by operand; -1 unless temporary */
    uint32_t count;
    uint64_t *bytes; /* by slot */
    uint64_t total;  /* as counted */
} acme_slots;

NNAdapterStatus acme_plan_slots(const NNAdapterModel *model, acme_slots *slots, NNAdapterError *error);
/* Set `bytes` by slot from the sizes in `values`, for a model with dynamic shapes. */
void acme_size_slots(const acme_slots *slots, const acme_tensor *values, uint32_t operand_count, uint64_t *bytes);
void acme_free_slots(acme_slots *slots);

/* ---- blob.c, restore.c: serialized programs ---- */

typedef struct acme_restored acme_restored;
void acme_free_restored(acme_restored *restored);
extern const NNAdapterSerializationFunctions acme_serialization_functions;

/* ---- program.c ---- */

struct NNAdapterProgram {
    NNAdapterContext *context;
    const NNAdapterModel *model;
    struct acme_plan *plan;
    acme_restored *restored; /* owner of a deserialized model; null if the host owns the model */
};

/* Return the program of a model; all operations must have kernels. */
NNAdapterStatus acme_make_program(NNAdapterContext *, const NNAdapterModel *, NNAdapterProgram **, NNAdapterError *);
NNAdapterStatus acme_compile(NNAdapterContext *, const NNAdapterCompileRequest *, NNAdapterProgram **,
                             NNAdapterError *);
NNAdapterStatus acme_bind(NNAdapterProgram *, const NNAdapterCompileRequest *, NNAdapterProgram **, NNAdapterError *);
void acme_destroy_program(NNAdapterProgram *);
NNAdapterStatus acme_create_execution(NNAdapterProgram *, NNAdapterExecution **, NNAdapterError *);
void acme_destroy_execution(NNAdapterExecution *);
NNAdapterStatus acme_compute(NNAdapterExecution *, const NNAdapterComputeRequest *, NNAdapterError *);

#endif
