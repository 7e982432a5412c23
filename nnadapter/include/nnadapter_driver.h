/* The C interface of nnadapter's drivers, version 1.0. C11 and C++11; this file has no dependencies.
 *
 * A driver is a shared library that exports one symbol, nnadapter_driver. It returns a table of functions.
 *
 * Rules. docs/c-drivers.md has more details.
 *
 *  1. Structures. Each begins with `size`, its size in bytes, and `version`, the NNADAPTER_VERSION of the side that
 *     created it. Structures only grow at their end, and arrays hold pointers to them. A member beyond `size` is 0.
 *  2. Versions. The driver's major equals the host's; its minor is at most the host's. An additional optional function
 *     at the end of a table changes neither: `size` shows if it is present, and other hosts ignore it.
 *  3. Strings are UTF-8 and null-terminated. Operation types and attributes have the names in the table of nnadapter's
 *     adapter IR; a driver refuses unknown names.
 *  4. Lifetime. Arguments of a call live until it returns, and longer in three cases. A model passed to `compile` or
 *     `clone_with_constants`, with its constants, lives unchanged until the program is destroyed. A compute request
 *     with a stream, and all that it points to, lives until the stream, or an event recorded after it, was
 *     synchronized. The same holds for memory passed to a copy with a stream. Descriptions that the driver returns (its table, device infos, capability) belong
 *     to the driver, and live as long as the library.
 *  5. Errors. A function returns NNADAPTER_OK or an error code, and may write one sentence into the error's buffer,
 *     which belongs to the host. The host ignores the outputs of a failed call.
 *  6. Contents are in row-major order without gaps, in the machine's byte order, aligned to the element size.
 *     bool: one byte, 0 or 1. int4, uint4: two elements per byte, the first in the low four bits; an odd last byte is
 *     padded with 0. bfloat16: the upper half of a float32. float8_e4m3fn, float8_e5m2: one byte, as in ONNX.
 *     Empty contents have a null pointer.
 *  7. Threads. Calls with the same context are sequential, as are those that create executions of one program, and
 *     those with the same stream; `clone_with_constants` counts as a call with its program and its context.
 *     `threading` declares which computations may be concurrent. Other calls, with different handles, may come at any
 *     time from any thread; so may memory functions and statistics. Handles are destroyed after those created from
 *     them, when no other call uses them; programs, in any order.
 *  8. Functions are required unless marked "optional". A group (memory, streams, serialization) is complete or absent.
 *  9. Dynamic shapes. A device that declares `dynamic_shapes` also gets models for many sizes: their `size_count` is
 *     not 0. Dynamic dimensions and numbers of attributes are NNADAPTER_DYNAMIC_SIZE, and the adjacent `sizes` has the
 *     index of the size. Every compute request has the values. Other devices get static shapes only.
 */
#ifndef NNADAPTER_DRIVER_H
#define NNADAPTER_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNADAPTER_VERSION_MAJOR 1u
#define NNADAPTER_VERSION_MINOR 0u
#define NNADAPTER_VERSION ((NNADAPTER_VERSION_MAJOR << 16) | NNADAPTER_VERSION_MINOR)

#if defined(_WIN32)
#define NNADAPTER_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define NNADAPTER_EXPORT __attribute__((visibility("default")))
#else
#define NNADAPTER_EXPORT
#endif

/* ---- codes ---------------------------------------------------------------------------------------------------- */

typedef int32_t NNAdapterStatus;
enum {
    NNADAPTER_OK = 0,
    NNADAPTER_FAILED = 1,               /* any other failure */
    NNADAPTER_INVALID_ARGUMENT = 2,     /* invalid arguments from the host */
    NNADAPTER_OUT_OF_MEMORY = 3,        /* on the device or the host */
    NNADAPTER_DEVICE_UNAVAILABLE = 4,   /* exists but is unusable here; the message has advice */
    NNADAPTER_DEVICE_LOST = 5,          /* lost; all its handles are unusable */
    NNADAPTER_INCOMPATIBLE_PROGRAM = 6, /* serialized program damaged, or for another version, device or option */
    NNADAPTER_CANCELLED = 7,            /* `cancelled` returned 1 */
    NNADAPTER_DEADLINE_EXCEEDED = 8,    /* `deadline_seconds` exceeded */
    NNADAPTER_TRANSIENT = 9             /* temporary failure; a retry may succeed */
};

enum { /* data types */
    NNADAPTER_BOOL = 1, NNADAPTER_INT4 = 2, NNADAPTER_INT8 = 3, NNADAPTER_INT16 = 4,
    NNADAPTER_INT32 = 5, NNADAPTER_INT64 = 6, NNADAPTER_UINT4 = 7, NNADAPTER_UINT8 = 8,
    NNADAPTER_UINT16 = 9, NNADAPTER_UINT32 = 10, NNADAPTER_UINT64 = 11, NNADAPTER_FLOAT8E4M3FN = 12,
    NNADAPTER_FLOAT8E5M2 = 13, NNADAPTER_FLOAT16 = 14, NNADAPTER_BFLOAT16 = 15, NNADAPTER_FLOAT32 = 16,
    NNADAPTER_FLOAT64 = 17
};

enum { NNADAPTER_NCHW = 1, NNADAPTER_NHWC = 2 }; /* layouts; NHWC for images only */

enum { /* lifetimes */
    NNADAPTER_CONSTANT = 1, NNADAPTER_TEMPORARY = 2, NNADAPTER_MODEL_INPUT = 3, NNADAPTER_MODEL_OUTPUT = 4
};

enum { /* kinds of attributes and options: the member of the union, and `count` */
    NNADAPTER_KIND_BOOL = 1,   /* boolean */
    NNADAPTER_KIND_INT = 2,    /* integer */
    NNADAPTER_KIND_FLOAT = 3,  /* real */
    NNADAPTER_KIND_STRING = 4, /* string */
    NNADAPTER_KIND_INTS = 5,   /* integers, count of them */
    NNADAPTER_KIND_FLOATS = 6, /* reals, count of them */
    NNADAPTER_KIND_STRINGS = 7 /* strings, count of them; only options */
};

enum { NNADAPTER_CPU = 1, NNADAPTER_GPU = 2, NNADAPTER_ACCELERATOR = 3 }; /* types of devices */

enum { /* concurrency of computations */
    NNADAPTER_REENTRANT = 1, /* one execution in many threads */
    NNADAPTER_EXCLUSIVE = 2, /* several executions, each in one thread at a time */
    NNADAPTER_SERIAL = 3     /* one computation at a time on the whole device */
};

enum { /* reasons for refusing an operation or a segment; reports use these names */
    NNADAPTER_UNSUPPORTED_OPERATION = 1,
    NNADAPTER_UNSUPPORTED_ATTRIBUTE = 2,
    NNADAPTER_UNSUPPORTED_DTYPE = 3,
    NNADAPTER_UNSUPPORTED_RANK = 4,
    NNADAPTER_NOT_CONSTANT = 5,  /* an input that must be constant is not */
    NNADAPTER_SWITCHED_OFF = 6,  /* disabled by an option */
    NNADAPTER_MEMORY_LIMIT = 7,  /* for `admit`: the host halves the segment and retries */
    NNADAPTER_SEGMENT_LIMIT = 8, /* for `admit`: any other limit on segments */
    NNADAPTER_DEVICE_REFUSED = 9 /* the device's software refused without a reason */
};

enum { /* compatibility of a serialized program with a context */
    NNADAPTER_IDENTICAL = 1,   /* compiled by this version, for this device, with these options */
    NNADAPTER_COMPATIBLE = 2,  /* not identical, but the program runs */
    NNADAPTER_RECOMPILE = 3,   /* the program does not run here, but its model may compile */
    NNADAPTER_INCOMPATIBLE = 4 /* not a program for this device */
};

enum { /* support for dynamic shapes */
    NNADAPTER_SHAPES_STATIC = 0,  /* static shapes only */
    NNADAPTER_SHAPES_DYNAMIC = 1,   /* compiles once for all sizes */
    NNADAPTER_SHAPES_BOUNDED = 2 /* compiles once for sizes within the bounds of its capability */
};

enum { /* precisions, of floating-point and of quantized models */
    NNADAPTER_PRECISION_FLOAT32 = 1,
    NNADAPTER_PRECISION_BFLOAT16 = 2,
    NNADAPTER_PRECISION_FLOAT16 = 3,
    NNADAPTER_PRECISION_W8A8 = 4,  /* 8-bit weights, 8-bit activations */
    NNADAPTER_PRECISION_W8A16 = 5, /* 8-bit weights, 16-bit activations */
    NNADAPTER_PRECISION_W8 = 6,    /* 8-bit weights, floating activations */
    NNADAPTER_PRECISION_W4A16 = 7  /* 4-bit weights, floating activations */
};

#define NNADAPTER_ABSENT (-1) /* an absent optional input */
#define NNADAPTER_DYNAMIC_SIZE (-1)   /* a size that varies per run */

/* True if a structure from the other side has a member: NNADAPTER_HAS(NNAdapterModel, model, size_count). */
#define NNADAPTER_HAS(type, structure, member) \
    ((structure)->size >= offsetof(type, member) + sizeof(((type *)0)->member))

/* ---- handles: opaque, defined by the driver -------------------------------------------------------------------- */

typedef struct NNAdapterDevice NNAdapterDevice;
typedef struct NNAdapterContext NNAdapterContext;
typedef struct NNAdapterProgram NNAdapterProgram;
typedef struct NNAdapterExecution NNAdapterExecution;
typedef struct NNAdapterMemory NNAdapterMemory;
typedef struct NNAdapterStream NNAdapterStream;
typedef struct NNAdapterEvent NNAdapterEvent;

/* ---- the model -------------------------------------------------------------------------------------------------- */

typedef struct NNAdapterQuantization { /* real = scale * (integer - zero_point) */
    uint32_t size, version;
    int32_t axis;   /* axis of the scales; -1 for one scale per tensor */
    uint32_t count; /* of scales and of zero points */
    const double *scales;
    const int64_t *zero_points;
} NNAdapterQuantization;

typedef struct NNAdapterOperand {
    uint32_t size, version;
    const char *name;
    int32_t data_type;
    int32_t layout;
    int32_t lifetime;
    uint32_t rank;
    const int64_t *dimensions;                 /* sizes or NNADAPTER_DYNAMIC_SIZE; null for a scalar */
    const NNAdapterQuantization *quantization; /* null if not quantized */
    const void *data;                          /* contents of a constant, otherwise null */
    uint64_t bytes;                            /* of the contents, for every lifetime; 0 for dynamic shapes */
    const int32_t *sizes; /* per dimension, index of the run's size, -1 if static; null if all are static */
} NNAdapterOperand;

typedef struct NNAdapterAttribute {
    uint32_t size, version;
    const char *name;
    int32_t kind;
    uint32_t count; /* of a list; otherwise 1 */
    union {
        int32_t boolean;
        int64_t integer;
        double real;
        const char *string;
        const int64_t *integers;
        const double *reals;
        const char *const *strings;
    } value;
    const int32_t *sizes; /* as for an operand, per number of an INT or INTS; null if all are static */
} NNAdapterAttribute;

typedef struct NNAdapterOperation {
    uint32_t size, version;
    const char *type;
    uint32_t input_count, output_count, attribute_count, origin_count;
    const int32_t *inputs;  /* indices of operands, or NNADAPTER_ABSENT */
    const int32_t *outputs; /* indices of operands */
    const NNAdapterAttribute *const *attributes; /* all attributes, with defaults filled in */
    const char *const *origins;                  /* names of the ONNX nodes that it implements */
} NNAdapterOperation;

typedef struct NNAdapterModel {
    uint32_t size, version;
    uint32_t operand_count, operation_count, input_count, output_count;
    const NNAdapterOperand *const *operands;
    const NNAdapterOperation *const *operations; /* in topological order */
    const int32_t *inputs;  /* indices of operands */
    const int32_t *outputs; /* indices of operands; may contain duplicates, inputs and constants */
    uint32_t size_count;    /* number of sizes that vary per run; 0 if all are static */
} NNAdapterModel;

typedef struct NNAdapterTensor { /* in a computation: a read-only input, or an output to fill */
    uint32_t size, version;
    int32_t data_type;
    uint32_t rank;
    const int64_t *dimensions; /* those of the model's operand, all static */
    void *data;                /* host memory; null if on the device, or empty */
    uint64_t bytes;
    NNAdapterMemory *memory; /* device memory, starting at `memory_offset`; null if on the host */
    uint64_t memory_offset;
} NNAdapterTensor;

/* ---- requests and results --------------------------------------------------------------------------------------- */

typedef struct NNAdapterError {
    uint32_t size, version;
    char *message; /* the host's buffer, initially empty */
    uint64_t capacity; /* size of the buffer, including the terminating 0 */
} NNAdapterError;

typedef struct NNAdapterVerdict {
    uint32_t size, version;
    int32_t supported; /* 1 or 0; initially 0 */
    int32_t reason;    /* if not supported */
    char *detail;      /* one sentence: value found and values accepted; the host's buffer, initially empty */
    uint64_t capacity;
} NNAdapterVerdict;

typedef struct NNAdapterAdmission {
    uint32_t size, version;
    NNAdapterVerdict *verdict; /* the host's; initially supported */
    uint64_t memory_bytes;     /* of the program and one execution on the device; 0 if unknown */
} NNAdapterAdmission;

typedef struct NNAdapterControl { /* functions callable from any thread during the call and its work */
    uint32_t size, version;
    double deadline_seconds; /* since the call began; 0 for none */
    int32_t (*cancelled)(void *user);               /* returns 1 if cancelled; may be null */
    void (*progress)(void *user, double fraction);  /* 0 to 1; may be null */
    void *user;
} NNAdapterControl;

typedef struct NNAdapterCompileRequest {
    uint32_t size, version;
    const NNAdapterModel *model;
    const NNAdapterControl *control; /* never null */
} NNAdapterCompileRequest;

typedef struct NNAdapterDeserializeRequest {
    uint32_t size, version;
    const void *data; /* bytes from `serialize`, possibly modified */
    uint64_t bytes;
    const NNAdapterControl *control; /* never null */
} NNAdapterDeserializeRequest;

typedef struct NNAdapterComputeRequest {
    uint32_t size, version;
    uint32_t input_count, output_count;
    const NNAdapterTensor *const *inputs;  /* in the order of the model's inputs */
    const NNAdapterTensor *const *outputs; /* in the order of the model's outputs; no two overlap */
    NNAdapterStream *stream; /* null: complete on return. Otherwise asynchronous; synchronize returns errors */
    const NNAdapterControl *control; /* never null */
    uint32_t size_count; /* the model's */
    const int64_t *sizes;
} NNAdapterComputeRequest;

typedef struct NNAdapterWriter { /* call `write` any number of times; return its status if not OK */
    uint32_t size, version;
    NNAdapterStatus (*write)(void *user, const void *data, uint64_t bytes);
    void *user;
} NNAdapterWriter;

/* ---- descriptions of a device ----------------------------------------------------------------------------------- */

typedef struct NNAdapterDeviceInfo {
    uint32_t size, version;
    const char *id; /* part of its name after the colon: "0", "1" */
    const char *vendor;
    const char *sub_type;       /* the vendor's name of this device model */
    const char *device_version; /* of hardware or firmware; may be null */
    int32_t type;
    int32_t available;  /* 1 or 0 */
    const char *reason; /* if unavailable: reason and advice */
} NNAdapterDeviceInfo;

typedef struct NNAdapterOption {
    uint32_t size, version;
    const NNAdapterAttribute *value; /* name, kind and default: BOOL, INT, FLOAT, STRING or STRINGS */
    const char *help;                /* one sentence */
    uint32_t choice_count;           /* of a string; 0: any */
    int32_t has_minimum;
    const char *const *choices;
    double minimum;
    int32_t affects_speed; /* 0 for an option that only disables operations */
} NNAdapterOption;

typedef struct NNAdapterOperationSupport { /* a row of `nnadapter ops` */
    uint32_t size, version;
    const char *type;
    uint32_t data_type_count;
    uint32_t smallest_rank, largest_rank;
    const int32_t *data_types; /* of the first input */
    const char *limits;        /* further limits, in words; may be null */
} NNAdapterOperationSupport;

typedef struct NNAdapterProfile { /* performance on real models, in seconds, bytes and FLOPs (a multiply-add is two) */
    uint32_t size, version;
    double peak_flops, bandwidth, launch_seconds, transfer_seconds, transfer_bandwidth, operation_seconds;
    int32_t channels_last; /* images are reordered at the boundary */
    int32_t host_memory;   /* transfers are free */
    int32_t simulated;     /* no hardware */
} NNAdapterProfile;

typedef struct NNAdapterComputePrecision { /* a precision in which the device computes */
    uint32_t size, version;
    int32_t precision;   /* NNADAPTER_PRECISION_... */
    int32_t per_channel; /* 1 if weights may have a scale per channel */
    int32_t asymmetric;  /* 1 if zero points may differ from 0 */
    int32_t full_graph;  /* 1 if every operation of a segment must be quantized */
} NNAdapterComputePrecision;

typedef struct NNAdapterCapability { /* the host's; the driver sets members that differ from 0, if the host HAS them */
    uint32_t size, version;
    int32_t threading;     /* initially NNADAPTER_SERIAL */
    uint64_t memory_bytes; /* of the device; 0 if unlimited */
    uint32_t option_count, operation_count;
    const NNAdapterOption *const *options;
    const NNAdapterOperationSupport *const *operations;
    const char *limits; /* limits for every operation, in words */
    const NNAdapterProfile *profile;
    int32_t dynamic_shapes;                  /* initially NNADAPTER_SHAPES_STATIC */
    int64_t smallest_size, largest_size; /* for SHAPES_BOUNDED: range of dynamic dimensions; a largest of 0: any */
    uint64_t largest_elements;           /* for SHAPES_BOUNDED: of a tensor with dynamic shape; 0: any number */
    const NNAdapterComputePrecision *const *precisions; /* several floating ones need an option "precision" */
    uint32_t precision_count;  /* 0: float32 only */
    int32_t default_precision; /* of the device's own software; 0: the first */
    uint32_t property_count;
    const NNAdapterAttribute *const *properties; /* by name, other fields of Capability in Python: checks_indices */
} NNAdapterCapability;

typedef struct NNAdapterMemoryStatistics {
    uint32_t size, version;
    uint64_t total_bytes, used_bytes, peak_bytes;
} NNAdapterMemoryStatistics;

/* ---- groups of optional functions ------------------------------------------------------------------------------- */

typedef struct NNAdapterMemoryFunctions { /* copies are complete on return if the stream is null */
    uint32_t size, version;
    NNAdapterStatus (*allocate)(NNAdapterDevice *device, uint64_t bytes, NNAdapterMemory **memory,
                                NNAdapterError *error);
    void (*free_memory)(NNAdapterMemory *memory);
    NNAdapterStatus (*copy_in)(NNAdapterMemory *memory, uint64_t offset, const void *data, uint64_t bytes,
                               NNAdapterStream *stream, NNAdapterError *error);
    NNAdapterStatus (*copy_out)(NNAdapterMemory *memory, uint64_t offset, void *data, uint64_t bytes,
                                NNAdapterStream *stream, NNAdapterError *error);
    /* between memories of one device, or of two devices of this driver */
    NNAdapterStatus (*copy_between)(NNAdapterMemory *target, uint64_t target_offset, NNAdapterMemory *source,
                                    uint64_t source_offset, uint64_t bytes, NNAdapterStream *stream,
                                    NNAdapterError *error);
    NNAdapterStatus (*statistics)(NNAdapterDevice *device, NNAdapterMemoryStatistics *statistics,
                                  NNAdapterError *error);
    uint64_t (*minimum_chunk)(NNAdapterDevice *device); /* bytes of the smallest allocation */
} NNAdapterMemoryFunctions;

typedef struct NNAdapterStreamFunctions { /* work on one stream is executed in order */
    uint32_t size, version;
    NNAdapterStatus (*create_stream)(NNAdapterDevice *device, NNAdapterStream **stream, NNAdapterError *error);
    void (*destroy_stream)(NNAdapterStream *stream); /* after its work is done */
    NNAdapterStatus (*create_event)(NNAdapterDevice *device, NNAdapterEvent **event, NNAdapterError *error);
    void (*destroy_event)(NNAdapterEvent *event);
    /* the event occurs when all current work of the stream is complete */
    NNAdapterStatus (*record_event)(NNAdapterEvent *event, NNAdapterStream *stream, NNAdapterError *error);
    /* later work of the stream waits for the event's last record, if any */
    NNAdapterStatus (*wait_event)(NNAdapterStream *stream, NNAdapterEvent *event, NNAdapterError *error);
    /* wait for all work; return the first failure since the last synchronization, and clear it */
    NNAdapterStatus (*synchronize_stream)(NNAdapterStream *stream, NNAdapterError *error);
    NNAdapterStatus (*synchronize_device)(NNAdapterDevice *device, NNAdapterError *error);
    /* both optional, together; without them a session waits for every step.
     * Wait until the event's last record occurred, if any. Return the failure, if any, that the stream had kept for its
     * synchronization at that point, without clearing it */
    NNAdapterStatus (*synchronize_event)(NNAdapterEvent *event, NNAdapterError *error);
    int32_t (*query_event)(NNAdapterEvent *event); /* 1 if synchronize_event would return immediately */
} NNAdapterStreamFunctions;

typedef struct NNAdapterSerializationFunctions {
    uint32_t size, version;
    NNAdapterStatus (*serialize)(NNAdapterProgram *program, const NNAdapterWriter *writer, NNAdapterError *error);
    NNAdapterStatus (*deserialize)(NNAdapterContext *context, const NNAdapterDeserializeRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error);
    /* optional; without it the host compares `driver_version` and the device with stored ones.
     * Return the compatibility of bytes from `serialize`, possibly modified, with a context. Read only their beginning:
     * the rest may be in a file that is not loaded. Return 0 if that does not suffice: the host compares */
    int32_t (*check_blob)(NNAdapterContext *context, const void *data, uint64_t bytes);
} NNAdapterSerializationFunctions;

/* ---- the table -------------------------------------------------------------------------------------------------- */

typedef struct NNAdapterDriver {
    uint32_t size, version;
    const char *vendor;         /* may be null */
    const char *driver_version; /* of the driver, as text; may be null */

    /* 1: open a device; `id` is the part of its name after the colon, or empty for the first */
    NNAdapterStatus (*open_device)(const char *id, NNAdapterDevice **device, NNAdapterError *error);
    void (*close_device)(NNAdapterDevice *device);
    /* 2: gets every option of the capability, checked, with defaults filled in */
    NNAdapterStatus (*create_context)(NNAdapterDevice *device, uint32_t option_count,
                                      const NNAdapterAttribute *const *options, NNAdapterContext **context,
                                      NNAdapterError *error);
    void (*destroy_context)(NNAdapterContext *context);
    /* 3: one verdict per operation of an entire graph, which may have gaps */
    NNAdapterStatus (*supported)(NNAdapterContext *context, const NNAdapterModel *model,
                                 NNAdapterVerdict *const *verdicts, NNAdapterError *error);
    /* 4: compile a segment that `admit` accepted */
    NNAdapterStatus (*compile)(NNAdapterContext *context, const NNAdapterCompileRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error);
    void (*destroy_program)(NNAdapterProgram *program);
    /* 5: allocate the buffers of one run */
    NNAdapterStatus (*create_execution)(NNAdapterProgram *program, NNAdapterExecution **execution,
                                        NNAdapterError *error);
    void (*destroy_execution)(NNAdapterExecution *execution);
    /* 6: compute outputs from inputs */
    NNAdapterStatus (*compute)(NNAdapterExecution *execution, const NNAdapterComputeRequest *request,
                               NNAdapterError *error);

    /* optional: list the devices of this machine without opening them; the infos belong to the driver */
    NNAdapterStatus (*list_devices)(const NNAdapterDeviceInfo *const **devices, uint32_t *count, NNAdapterError *error);
    /* optional: return limits and options; without it the device is serial and has none */
    NNAdapterStatus (*describe_device)(NNAdapterDevice *device, NNAdapterCapability *capability, NNAdapterError *error);
    /* optional: accept or refuse a final segment; without it every segment is accepted */
    NNAdapterStatus (*admit)(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterAdmission *admission,
                             NNAdapterError *error);
    /* optional: return the bytes of a program and one execution of it */
    uint64_t (*program_memory)(NNAdapterProgram *program);
    /* optional groups, null if absent */
    const NNAdapterMemoryFunctions *memory;
    const NNAdapterStreamFunctions *streams;
    const NNAdapterSerializationFunctions *serialization;

    /* optional: create a program for the request's model from `program`, with other constants. The model was admitted;
     * it differs from the model of `program` only in names and contents of constants. `program` does not change, and
     * may be destroyed before or after the new one: count references to shared data, and do not point into either
     * model. Leave `*bound` null if the model must be compiled after all */
    NNAdapterStatus (*clone_with_constants)(NNAdapterProgram *program, const NNAdapterCompileRequest *request,
                            NNAdapterProgram **bound, NNAdapterError *error);
} NNAdapterDriver;

/* The one exported symbol. A driver that cannot serve this version of the host returns null. */
NNADAPTER_EXPORT const NNAdapterDriver *nnadapter_driver(uint32_t host_version);

#ifdef __cplusplus
}
#endif
#endif /* NNADAPTER_DRIVER_H */
