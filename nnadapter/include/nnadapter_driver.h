/* The C interface of nnadapter's drivers, version 1.0. C11 and C++11; nothing but this file is needed.
 *
 * A driver is a shared library that exports one symbol, nnadapter_driver. It returns a table of functions.
 *
 * Rules. docs/c-drivers.md says more of each.
 *
 *  1. Structures. Each begins with `size`, its bytes, and `version`, NNADAPTER_VERSION of whoever made it. Structures
 *     only grow, at their end, and arrays hold pointers to them. A member that lies beyond `size` is not there: 0.
 *  2. Versions. The driver's major equals the host's, its minor is at most the host's. An optional function more at the
 *     end of a table raises neither: `size` says whether it is there, and a host that does not know it does without.
 *  3. Strings are UTF-8 and end in 0. Operation types and attributes are named as in the table of nnadapter's
 *     adapter IR; a driver refuses names that it does not know.
 *  4. Life. What a call is given lives until it returns, and longer in three cases: a model given to `compile` or
 *     `clone_with_constants`, its constants too, lives unchanged until the program made of it is destroyed; a compute request with a
 *     stream, and all it points to, lives until that stream was synchronized; so does memory given to a copy with a
 *     stream. What a driver tells of itself (its table, device infos, capability) is the driver's, and lives as long as
 *     the library.
 *  5. Errors. A function returns NNADAPTER_OK or what went wrong, and may write one sentence into the error's buffer,
 *     which belongs to the host. Outputs of a call that failed are not looked at.
 *  6. Contents lie in row-major order without gaps, in the byte order of the machine, aligned to an element's size.
 *     bool: one byte, 0 or 1. int4, uint4: two elements a byte, the first in the low four bits, an odd last byte filled
 *     with 0. bfloat16: the upper half of a float32. float8_e4m3fn, float8_e5m2: one byte, as ONNX says.
 *     Contents of no bytes have a null pointer.
 *  7. Threads. Calls that name the same context come one at a time, as do those that make executions of one program,
 *     and those that name the same stream; `clone_with_constants` counts among those of the program and among those of its context.
 *     What may compute at once is said by `threading`. Other calls, with other handles, may come at any time from any
 *     thread; so may memory and its statistics. Handles are destroyed after those that were made of them, when no
 *     other call uses them; programs, in any order.
 *  8. Required functions are those without "optional"; a group (memory, streams, serialization) is whole or absent.
 *  9. Open sizes. A device that says `dynamic_shapes` in its capability is given models for many sizes, too: their
 *     `size_count` is not 0. A dimension, or a number of an attribute, that is open there is NNADAPTER_DYNAMIC_SIZE, and `sizes`
 *     beside it says which of the run's sizes it is. Every compute request says what these are. Other devices see
 *     known sizes alone.
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
    NNADAPTER_FAILED = 1,               /* anything that has no code of its own */
    NNADAPTER_INVALID_ARGUMENT = 2,     /* what the host gave makes no sense */
    NNADAPTER_OUT_OF_MEMORY = 3,        /* no room on the device or the host */
    NNADAPTER_DEVICE_UNAVAILABLE = 4,   /* known, and cannot be used here; the message says what to do */
    NNADAPTER_DEVICE_LOST = 5,          /* gone; nothing on it can be used again */
    NNADAPTER_INCOMPATIBLE_PROGRAM = 6, /* serialized bytes that are damaged or of another version, device or option */
    NNADAPTER_CANCELLED = 7,            /* `cancelled` said so */
    NNADAPTER_DEADLINE_EXCEEDED = 8,    /* not done within `deadline_seconds` */
    NNADAPTER_TRANSIENT = 9             /* it failed now; the same may go well when it is repeated */
};

enum { /* data types */
    NNADAPTER_BOOL = 1, NNADAPTER_INT4 = 2, NNADAPTER_INT8 = 3, NNADAPTER_INT16 = 4,
    NNADAPTER_INT32 = 5, NNADAPTER_INT64 = 6, NNADAPTER_UINT4 = 7, NNADAPTER_UINT8 = 8,
    NNADAPTER_UINT16 = 9, NNADAPTER_UINT32 = 10, NNADAPTER_UINT64 = 11, NNADAPTER_FLOAT8E4M3FN = 12,
    NNADAPTER_FLOAT8E5M2 = 13, NNADAPTER_FLOAT16 = 14, NNADAPTER_BFLOAT16 = 15, NNADAPTER_FLOAT32 = 16,
    NNADAPTER_FLOAT64 = 17
};

enum { NNADAPTER_NCHW = 1, NNADAPTER_NHWC = 2 }; /* layouts; all but images are NCHW */

enum { /* lifetimes */
    NNADAPTER_CONSTANT = 1, NNADAPTER_TEMPORARY = 2, NNADAPTER_MODEL_INPUT = 3, NNADAPTER_MODEL_OUTPUT = 4
};

enum { /* kinds of attributes and options: the member of the union, and what `count` counts */
    NNADAPTER_KIND_BOOL = 1,   /* boolean */
    NNADAPTER_KIND_INT = 2,    /* integer */
    NNADAPTER_KIND_FLOAT = 3,  /* real */
    NNADAPTER_KIND_STRING = 4, /* string */
    NNADAPTER_KIND_INTS = 5,   /* integers, count of them */
    NNADAPTER_KIND_FLOATS = 6, /* reals, count of them */
    NNADAPTER_KIND_STRINGS = 7 /* strings, count of them; options alone */
};

enum { NNADAPTER_CPU = 1, NNADAPTER_GPU = 2, NNADAPTER_ACCELERATOR = 3 }; /* types of devices */

enum { /* what may compute at once */
    NNADAPTER_REENTRANT = 1, /* one execution in many threads */
    NNADAPTER_EXCLUSIVE = 2, /* executions side by side, each in one thread at a time */
    NNADAPTER_SERIAL = 3     /* one computation at a time on the whole device */
};

enum { /* why an operation or a segment is refused; they reach reports under these names */
    NNADAPTER_UNSUPPORTED_OPERATION = 1,
    NNADAPTER_UNSUPPORTED_ATTRIBUTE = 2,
    NNADAPTER_UNSUPPORTED_DTYPE = 3,
    NNADAPTER_UNSUPPORTED_RANK = 4,
    NNADAPTER_NOT_CONSTANT = 5,  /* an input must be a constant and is not */
    NNADAPTER_SWITCHED_OFF = 6,  /* by an option */
    NNADAPTER_MEMORY_LIMIT = 7,  /* for `admit`: the host halves the segment and asks again */
    NNADAPTER_SEGMENT_LIMIT = 8, /* for `admit`: not acceptable as a whole */
    NNADAPTER_DEVICE_REFUSED = 9 /* the device's own software said no and gave no code */
};

enum { /* what a serialized program is to a context */
    NNADAPTER_IDENTICAL = 1,   /* this version compiled it for this device, with these options */
    NNADAPTER_COMPATIBLE = 2,  /* it did not, and the program runs all the same */
    NNADAPTER_RECOMPILE = 3,   /* the program does not run here; the model that it was compiled from may */
    NNADAPTER_INCOMPATIBLE = 4 /* it is none of this device's */
};

enum { /* what a device can do with sizes that are left open */
    NNADAPTER_SHAPES_STATIC = 0,  /* it compiles for fixed ones */
    NNADAPTER_SHAPES_DYNAMIC = 1,   /* it compiles once, and runs at whatever sizes come */
    NNADAPTER_SHAPES_BOUNDED = 2 /* the same within the bounds of its capability */
};

#define NNADAPTER_ABSENT (-1) /* an optional input that is not there */
#define NNADAPTER_DYNAMIC_SIZE (-1)   /* a size that every run is told */

/* Whether a structure that the other side made has a member: NNADAPTER_HAS(NNAdapterModel, model, size_count). */
#define NNADAPTER_HAS(type, structure, member) \
    ((structure)->size >= offsetof(type, member) + sizeof(((type *)0)->member))

/* ---- handles: the driver says what is in them ------------------------------------------------------------------ */

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
    int32_t axis;   /* that the scales run along; -1 for one scale per tensor */
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
    const int64_t *dimensions;                 /* known, or NNADAPTER_DYNAMIC_SIZE; null for a scalar */
    const NNAdapterQuantization *quantization; /* null if it is not quantized */
    const void *data;                          /* of a constant, else null */
    uint64_t bytes;                            /* of the contents, whatever the lifetime; 0 where sizes are open */
    const int32_t *sizes; /* per dimension, which of the run's sizes it is, -1 if it is known; null where all are */
} NNAdapterOperand;

typedef struct NNAdapterAttribute {
    uint32_t size, version;
    const char *name;
    int32_t kind;
    uint32_t count; /* of a list; 1 for the others */
    union {
        int32_t boolean;
        int64_t integer;
        double real;
        const char *string;
        const int64_t *integers;
        const double *reals;
        const char *const *strings;
    } value;
    const int32_t *sizes; /* as of an operand, per number of an INT or INTS; null where all are known */
} NNAdapterAttribute;

typedef struct NNAdapterOperation {
    uint32_t size, version;
    const char *type;
    uint32_t input_count, output_count, attribute_count, origin_count;
    const int32_t *inputs;  /* positions of operands, or NNADAPTER_ABSENT */
    const int32_t *outputs; /* positions of operands */
    const NNAdapterAttribute *const *attributes; /* all that the operation has, defaults filled in */
    const char *const *origins;                  /* names of the ONNX nodes that it stands for */
} NNAdapterOperation;

typedef struct NNAdapterModel {
    uint32_t size, version;
    uint32_t operand_count, operation_count, input_count, output_count;
    const NNAdapterOperand *const *operands;
    const NNAdapterOperation *const *operations; /* in an order in which they can run */
    const int32_t *inputs;  /* positions of operands */
    const int32_t *outputs; /* positions of operands; one may stand twice, and be an input or a constant */
    uint32_t size_count;    /* sizes that every run is told; 0 where all are known */
} NNAdapterModel;

typedef struct NNAdapterTensor { /* in a computation: an input, not to be written to, or an output to fill */
    uint32_t size, version;
    int32_t data_type;
    uint32_t rank;
    const int64_t *dimensions; /* those of the model's operand, every one known */
    void *data;                /* host memory; null if it lies on the device, or has no bytes */
    uint64_t bytes;
    NNAdapterMemory *memory; /* device memory, from `memory_offset` on; null if it lies on the host */
    uint64_t memory_offset;
} NNAdapterTensor;

/* ---- answers and requests --------------------------------------------------------------------------------------- */

typedef struct NNAdapterError {
    uint32_t size, version;
    char *message; /* the host's buffer, empty at first */
    uint64_t capacity; /* bytes of it, the final 0 included */
} NNAdapterError;

typedef struct NNAdapterVerdict {
    uint32_t size, version;
    int32_t supported; /* 1 or 0; 0 at first */
    int32_t reason;    /* if it is 0 */
    char *detail;      /* one sentence: what was found and what is accepted; the host's buffer, empty at first */
    uint64_t capacity;
} NNAdapterVerdict;

typedef struct NNAdapterAdmission {
    uint32_t size, version;
    NNAdapterVerdict *verdict; /* the host's; supported at first */
    uint64_t memory_bytes;     /* that the program and one execution will take on the device; 0 if unknown */
} NNAdapterAdmission;

typedef struct NNAdapterControl { /* both may be called from any thread while the call or its work lasts */
    uint32_t size, version;
    double deadline_seconds; /* after the call began; 0 for none */
    int32_t (*cancelled)(void *user);               /* 1 if the work is not wanted any more; null if nobody asks */
    void (*progress)(void *user, double fraction);  /* 0 to 1; null if nobody listens */
    void *user;
} NNAdapterControl;

typedef struct NNAdapterCompileRequest {
    uint32_t size, version;
    const NNAdapterModel *model;
    const NNAdapterControl *control; /* never null */
} NNAdapterCompileRequest;

typedef struct NNAdapterDeserializeRequest {
    uint32_t size, version;
    const void *data; /* bytes that `serialize` wrote, or somebody changed */
    uint64_t bytes;
    const NNAdapterControl *control; /* never null */
} NNAdapterDeserializeRequest;

typedef struct NNAdapterComputeRequest {
    uint32_t size, version;
    uint32_t input_count, output_count;
    const NNAdapterTensor *const *inputs;  /* in the order of the model's inputs */
    const NNAdapterTensor *const *outputs; /* in the order of the model's outputs; no two overlap */
    NNAdapterStream *stream; /* null: be done on return. Else work may go on after it; errors come with synchronize */
    const NNAdapterControl *control; /* never null */
    uint32_t size_count; /* that of the model */
    const int64_t *sizes;
} NNAdapterComputeRequest;

typedef struct NNAdapterWriter { /* call it as often as need be; its status is to be returned if it is not OK */
    uint32_t size, version;
    NNAdapterStatus (*write)(void *user, const void *data, uint64_t bytes);
    void *user;
} NNAdapterWriter;

/* ---- what a device says of itself ------------------------------------------------------------------------------- */

typedef struct NNAdapterDeviceInfo {
    uint32_t size, version;
    const char *id; /* what stands behind the colon of its name: "0", "1" */
    const char *vendor;
    const char *sub_type;       /* the vendor's name for this model of device */
    const char *device_version; /* of hardware or firmware; may be null */
    int32_t type;
    int32_t available;  /* 1 or 0 */
    const char *reason; /* why it is not, and what to do */
} NNAdapterDeviceInfo;

typedef struct NNAdapterOption {
    uint32_t size, version;
    const NNAdapterAttribute *value; /* name, kind and default: BOOL, INT, FLOAT, STRING or STRINGS */
    const char *help;                /* one sentence */
    uint32_t choice_count;           /* of a string; 0: anything */
    int32_t has_minimum;
    const char *const *choices;
    double minimum;
    int32_t affects_speed; /* 0 for an option that only switches operations off */
} NNAdapterOption;

typedef struct NNAdapterOperationSupport { /* a row of `nnadapter ops` */
    uint32_t size, version;
    const char *type;
    uint32_t data_type_count;
    uint32_t smallest_rank, largest_rank;
    const int32_t *data_types; /* of the first input */
    const char *limits;        /* further ones, in words; may be null */
} NNAdapterOperationSupport;

typedef struct NNAdapterProfile { /* what real models reach, in seconds, bytes and FLOPs (a multiply-add is two) */
    uint32_t size, version;
    double peak_flops, bandwidth, launch_seconds, transfer_seconds, transfer_bandwidth, operation_seconds;
    int32_t channels_last; /* images are reordered when they cross */
    int32_t host_memory;   /* values cross for nothing */
    int32_t simulated;     /* no hardware */
} NNAdapterProfile;

typedef struct NNAdapterCapability { /* the host's; the driver fills in what differs from 0, if the host HAS it */
    uint32_t size, version;
    int32_t threading;     /* NNADAPTER_SERIAL at first */
    uint64_t memory_bytes; /* of the device; 0 if it has no limit */
    uint32_t option_count, operation_count;
    const NNAdapterOption *const *options;
    const NNAdapterOperationSupport *const *operations;
    const char *limits; /* what holds for every operation, in words */
    const NNAdapterProfile *profile;
    int32_t dynamic_shapes;                  /* NNADAPTER_SHAPES_STATIC at first */
    int64_t smallest_size, largest_size; /* of SHAPES_BOUNDED: what an open dimension may be; a largest of 0: any */
    uint64_t largest_elements;           /* of SHAPES_BOUNDED: of a tensor whose sizes are open; 0: any number */
} NNAdapterCapability;

typedef struct NNAdapterMemoryStatistics {
    uint32_t size, version;
    uint64_t total_bytes, used_bytes, peak_bytes;
} NNAdapterMemoryStatistics;

/* ---- groups of optional functions ------------------------------------------------------------------------------- */

typedef struct NNAdapterMemoryFunctions { /* copies are done on return if the stream is null */
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
    uint64_t (*minimum_chunk)(NNAdapterDevice *device); /* bytes that the smallest allocation takes */
} NNAdapterMemoryFunctions;

typedef struct NNAdapterStreamFunctions { /* work on one stream is done in the order in which it came */
    uint32_t size, version;
    NNAdapterStatus (*create_stream)(NNAdapterDevice *device, NNAdapterStream **stream, NNAdapterError *error);
    void (*destroy_stream)(NNAdapterStream *stream); /* after its work is done */
    NNAdapterStatus (*create_event)(NNAdapterDevice *device, NNAdapterEvent **event, NNAdapterError *error);
    void (*destroy_event)(NNAdapterEvent *event);
    /* the event happens when the work that the stream has now is done */
    NNAdapterStatus (*record_event)(NNAdapterEvent *event, NNAdapterStream *stream, NNAdapterError *error);
    /* later work of the stream waits for the event's last record; at once if there was none */
    NNAdapterStatus (*wait_event)(NNAdapterStream *stream, NNAdapterEvent *event, NNAdapterError *error);
    /* until all work is done; returns the first failure since the last synchronization, and forgets it */
    NNAdapterStatus (*synchronize_stream)(NNAdapterStream *stream, NNAdapterError *error);
    NNAdapterStatus (*synchronize_device)(NNAdapterDevice *device, NNAdapterError *error);
    /* both optional, together; without them a session waits for every step:
     * until the event's last record happened, at once if there was none; returns the failure, if any, that the stream
     * had kept for its synchronization when it came there, and does not forget it */
    NNAdapterStatus (*synchronize_event)(NNAdapterEvent *event, NNAdapterError *error);
    int32_t (*query_event)(NNAdapterEvent *event); /* 1 if that would return at once */
} NNAdapterStreamFunctions;

typedef struct NNAdapterSerializationFunctions {
    uint32_t size, version;
    NNAdapterStatus (*serialize)(NNAdapterProgram *program, const NNAdapterWriter *writer, NNAdapterError *error);
    NNAdapterStatus (*deserialize)(NNAdapterContext *context, const NNAdapterDeserializeRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error);
    /* optional; without it the host compares `driver_version` and the device with those that it kept:
     * what bytes that `serialize` wrote, or somebody changed, are to a context. Their beginning is enough: the rest may
     * lie in a file of which nothing was read. 0 where that does not tell: the host compares */
    int32_t (*check_blob)(NNAdapterContext *context, const void *data, uint64_t bytes);
} NNAdapterSerializationFunctions;

/* ---- the table -------------------------------------------------------------------------------------------------- */

typedef struct NNAdapterDriver {
    uint32_t size, version;
    const char *vendor;         /* may be null */
    const char *driver_version; /* of the driver, as text; may be null */

    /* 1: open a device; `id` is what stands behind the colon of its name, or empty for the first */
    NNAdapterStatus (*open_device)(const char *id, NNAdapterDevice **device, NNAdapterError *error);
    void (*close_device)(NNAdapterDevice *device);
    /* 2: every option of the capability is given, checked, defaults filled in */
    NNAdapterStatus (*create_context)(NNAdapterDevice *device, uint32_t option_count,
                                      const NNAdapterAttribute *const *options, NNAdapterContext **context,
                                      NNAdapterError *error);
    void (*destroy_context)(NNAdapterContext *context);
    /* 3: one verdict per operation of a whole graph, in which parts may be missing */
    NNAdapterStatus (*supported)(NNAdapterContext *context, const NNAdapterModel *model,
                                 NNAdapterVerdict *const *verdicts, NNAdapterError *error);
    /* 4: a segment that `admit` took */
    NNAdapterStatus (*compile)(NNAdapterContext *context, const NNAdapterCompileRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error);
    void (*destroy_program)(NNAdapterProgram *program);
    /* 5: the buffers of one run */
    NNAdapterStatus (*create_execution)(NNAdapterProgram *program, NNAdapterExecution **execution,
                                        NNAdapterError *error);
    void (*destroy_execution)(NNAdapterExecution *execution);
    /* 6: inputs to outputs */
    NNAdapterStatus (*compute)(NNAdapterExecution *execution, const NNAdapterComputeRequest *request,
                               NNAdapterError *error);

    /* optional: the devices of this machine, without opening them; the infos are the driver's */
    NNAdapterStatus (*list_devices)(const NNAdapterDeviceInfo *const **devices, uint32_t *count, NNAdapterError *error);
    /* optional: limits and options; without it the device is serial and has none */
    NNAdapterStatus (*describe_device)(NNAdapterDevice *device, NNAdapterCapability *capability, NNAdapterError *error);
    /* optional: judge a final segment as a whole; without it every one is admitted */
    NNAdapterStatus (*admit)(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterAdmission *admission,
                             NNAdapterError *error);
    /* optional: bytes that a program and one execution of it hold */
    uint64_t (*program_memory)(NNAdapterProgram *program);
    /* optional groups, null if absent */
    const NNAdapterMemoryFunctions *memory;
    const NNAdapterStreamFunctions *streams;
    const NNAdapterSerializationFunctions *serialization;

    /* optional: a new program of the request's model, made of `program` by giving it other constants. The model was
     * admitted; it differs from the one of `program` in names, and in what constants hold. `program` stays as it was,
     * and may be destroyed before the new one or after it: what both share counts who uses it, and points into neither
     * model. Leave `*bound` null where the model has to be compiled after all */
    NNAdapterStatus (*clone_with_constants)(NNAdapterProgram *program, const NNAdapterCompileRequest *request,
                            NNAdapterProgram **bound, NNAdapterError *error);
} NNAdapterDriver;

/* The one exported symbol. A driver that cannot serve this version of the host returns null. */
NNADAPTER_EXPORT const NNAdapterDriver *nnadapter_driver(uint32_t host_version);

#ifdef __cplusplus
}
#endif
#endif /* NNADAPTER_DRIVER_H */
