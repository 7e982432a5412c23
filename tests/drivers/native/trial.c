/* A driver for tests: it copies contents (ASSIGN), and is wrong on request, by macros and by its option `fault`. */
#include <stdlib.h>
#include <string.h>

#include "nnadapter_driver.h"

#ifndef TABLE_VERSION
#define TABLE_VERSION NNADAPTER_VERSION
#endif
#ifndef TABLE_SIZE
#define TABLE_SIZE sizeof(NNAdapterDriver)
#endif
#define HEAD(type) .size = sizeof(type), .version = NNADAPTER_VERSION

struct NNAdapterContext { char fault[32]; };
struct NNAdapterProgram { NNAdapterContext *context; uint64_t bytes; };
struct NNAdapterExecution { NNAdapterProgram *program; };

static int is(const NNAdapterContext *context, const char *fault) { return !strcmp(context->fault, fault); }

static NNAdapterStatus fail(const NNAdapterContext *context, NNAdapterError *error) {
    if (is(context, "no_message")) return NNADAPTER_FAILED;
    if (is(context, "odd_status")) return 77;
    if (is(context, "bad_text")) strcpy(error->message, "caf\xe9 \xff");
    else if (is(context, "endless")) memset(error->message, 'x', error->capacity);
    else strcpy(error->message, "a sentence");
    return strncmp(context->fault, "status", 6) ? NNADAPTER_FAILED : atoi(context->fault + 6);
}

static NNAdapterStatus open_device(const char *id, NNAdapterDevice **device, NNAdapterError *error) {
    static int something;
    if (!strcmp(id, "7")) { strcpy(error->message, "no such slot"); return NNADAPTER_INVALID_ARGUMENT; }
    *device = (NNAdapterDevice *)&something;
    return NNADAPTER_OK;
}
static void close_device(NNAdapterDevice *device) { (void)device; }

static NNAdapterStatus create_context(NNAdapterDevice *device, uint32_t count, const NNAdapterAttribute *const *options,
                                      NNAdapterContext **context, NNAdapterError *error) {
    (void)device, (void)error;
    *context = calloc(1, sizeof **context);
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(options[i]->name, "fault")) strncpy((*context)->fault, options[i]->value.string, 31);
    return NNADAPTER_OK;
}
static void destroy_context(NNAdapterContext *context) { free(context); }

static NNAdapterStatus supported(NNAdapterContext *context, const NNAdapterModel *model,
                                 NNAdapterVerdict *const *verdicts, NNAdapterError *error) {
    if (is(context, "supported_fails")) return fail(context, error);
    for (uint32_t i = 0; i < model->operation_count && !is(context, "silent"); i++) {
        verdicts[i]->supported = is(context, "odd_answer") ? 7 : !is(context, "odd_reason") && !is(context, "refuses");
        verdicts[i]->reason = is(context, "odd_reason") ? 99 : NNADAPTER_DEVICE_REFUSED;
        if (is(context, "refuses")) memset(verdicts[i]->detail, 'r', verdicts[i]->capacity);
    }
    return NNADAPTER_OK;
}

static NNAdapterStatus compile(NNAdapterContext *context, const NNAdapterCompileRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error) {
    if (context->fault[0] && !is(context, "null_execution") && strncmp(context->fault, "bind", 4)) {
        if (is(context, "null_program")) return NNADAPTER_OK;
        return fail(context, error);
    }
    *program = malloc(sizeof **program);
    **program = (NNAdapterProgram){context, request->model->operands[request->model->outputs[0]]->bytes};
    return NNADAPTER_OK;
}

static NNAdapterStatus bind(NNAdapterProgram *program, const NNAdapterCompileRequest *request,
                            NNAdapterProgram **bound, NNAdapterError *error) {
    const NNAdapterContext *context = program->context;
    if (is(context, "bind_null")) return NNADAPTER_OK;
    if (is(context, "bind_fails")) return fail(context, error);
    if (is(context, "bind_invalid")) return NNADAPTER_INVALID_ARGUMENT;
    if (is(context, "bind_lost")) return NNADAPTER_DEVICE_LOST;
    if (is(context, "bind_same")) *bound = program;
    return *bound ? NNADAPTER_OK : compile(program->context, request, bound, error);
}
static void destroy_program(NNAdapterProgram *program) { free(program); }

static NNAdapterStatus create_execution(NNAdapterProgram *program, NNAdapterExecution **execution,
                                        NNAdapterError *error) {
    (void)error;
    if (is(program->context, "null_execution")) return NNADAPTER_OK;
    *execution = malloc(sizeof **execution);
    (*execution)->program = program;
    return NNADAPTER_OK;
}
static void destroy_execution(NNAdapterExecution *execution) { free(execution); }

static NNAdapterStatus compute(NNAdapterExecution *execution, const NNAdapterComputeRequest *request,
                               NNAdapterError *error) {
    (void)execution;
    const NNAdapterTensor *x = request->inputs[0], *y = request->outputs[0];
    if (x->bytes != y->bytes || !x->data != !x->bytes || !y->data != !y->bytes) {
        strcpy(error->message, "the tensors do not fit");
        return NNADAPTER_FAILED;
    }
    if (x->bytes) memcpy(y->data, x->data, x->bytes);
    return NNADAPTER_OK;
}

static NNAdapterStatus describe_device(NNAdapterDevice *device, NNAdapterCapability *capability,
                                       NNAdapterError *error) {
    static const NNAdapterAttribute fault = {HEAD(NNAdapterAttribute), .name = "fault",
                                             .kind = NNADAPTER_KIND_STRING, .count = 1, .value.string = ""};
    static const NNAdapterOption option = {HEAD(NNAdapterOption), .value = &fault, .help = "Where to fail."};
    static const NNAdapterOption *const options[] = {&option, NULL};
    static const NNAdapterProfile profile = {HEAD(NNAdapterProfile), 1e9, 2e9, 3e-6, 4e-6, 5e9, 6e-6, 1, 0, 1};
    (void)device, (void)error;
    capability->option_count = 1;
    capability->options = options;
    capability->profile = &profile;
#ifdef ODD_THREADING
    capability->threading = 12;
#endif
#ifdef NULL_OPTION
    capability->option_count = 2;
#endif
#ifdef PROPERTY
    static const char *const domains[] = {"com.trial", "org.trial"};
    static const NNAdapterAttribute named[] = {
        {HEAD(NNAdapterAttribute), .name = "domains", .kind = NNADAPTER_KIND_STRINGS, .count = 2, .value.strings = domains},
        {HEAD(NNAdapterAttribute), .name = PROPERTY},
    };
    static const NNAdapterAttribute *const properties[] = {&named[0], &named[1]};
    if (NNADAPTER_HAS(NNAdapterCapability, capability, properties)) {
        capability->properties = properties;
        capability->property_count = 2;
    }
#endif
#ifdef PRECISIONS
    static const NNAdapterComputePrecision half = {HEAD(NNAdapterComputePrecision), NNADAPTER_PRECISION_FLOAT16, 1, 1, 0};
    static const NNAdapterComputePrecision int8 = {HEAD(NNAdapterComputePrecision), PRECISIONS, 0, 1, 1};
    static const NNAdapterComputePrecision *const precisions[] = {&half, &int8};
    if (NNADAPTER_HAS(NNAdapterCapability, capability, default_precision)) {
        capability->precisions = precisions;
        capability->precision_count = 2;
        capability->default_precision = PRECISIONS;
    }
#endif
    return NNADAPTER_OK;
}

#ifdef LISTS
static NNAdapterStatus list_devices(const NNAdapterDeviceInfo *const **devices, uint32_t *count, NNAdapterError *error) {
    static const NNAdapterDeviceInfo infos[] = {
        {HEAD(NNAdapterDeviceInfo), .id = "0", .vendor = "Trial", .type = NNADAPTER_GPU, .sub_type = "T1", .available = 1},
        {HEAD(NNAdapterDeviceInfo), .id = "7", .available = 0, .reason = "slot 7 is empty; put a card there"},
    };
    static const NNAdapterDeviceInfo *const list[] = {&infos[0], &infos[1]};
    (void)error;
    *devices = list;
    *count = 2;
    return NNADAPTER_OK;
}
#endif

static NNAdapterStatus serialize(NNAdapterProgram *program, const NNAdapterWriter *writer, NNAdapterError *error) {
    (void)error;
    NNAdapterStatus status = writer->write(writer->user, "trial", 5);
    return status ? status : writer->write(writer->user, &program->bytes, sizeof program->bytes);
}

static NNAdapterStatus deserialize(NNAdapterContext *context, const NNAdapterDeserializeRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error) {
    if (request->bytes != 5 + sizeof(uint64_t) || memcmp(request->data, "trial", 5)) {
        strcpy(error->message, "that is no program of mine; compile it again");
        return NNADAPTER_INCOMPATIBLE_PROGRAM;
    }
    *program = calloc(1, sizeof **program);
    (*program)->context = context;
    memcpy(&(*program)->bytes, (const char *)request->data + 5, sizeof(uint64_t));
    return NNADAPTER_OK;
}

/* What the option `fault` wants it to say: "says3". */
static int32_t check_blob(NNAdapterContext *context, const void *data, uint64_t bytes) {
    if (bytes < 5 || memcmp(data, "trial", 5)) return NNADAPTER_INCOMPATIBLE;
    return strncmp(context->fault, "says", 4) ? NNADAPTER_IDENTICAL : atoi(context->fault + 4);
}

#ifndef GROUP_SIZE
#define GROUP_SIZE sizeof(NNAdapterSerializationFunctions)
#endif
static const NNAdapterSerializationFunctions serialization = {
    .size = GROUP_SIZE, .version = NNADAPTER_VERSION, .serialize = serialize, .check_blob = check_blob,
#ifndef HALF_GROUP
    .deserialize = deserialize,
#endif
};

static const NNAdapterDriver driver = {
    .size = TABLE_SIZE, .version = TABLE_VERSION, .vendor = "Trial", .driver_version = "3",
    .open_device = open_device, .close_device = close_device,
    .create_context = create_context, .destroy_context = destroy_context,
#ifndef LACKING
    .supported = supported, .destroy_program = destroy_program,
#endif
    .compile = compile, .create_execution = create_execution,
    .destroy_execution = destroy_execution, .compute = compute, .describe_device = describe_device,
    .serialization = &serialization,
    .clone_with_constants = bind,
#ifdef LISTS
    .list_devices = list_devices,
#endif
};

#ifdef LACKING
void *const unused[] = {(void *)supported, (void *)destroy_program};
#endif
#ifdef HALF_GROUP
void *const unused[] = {(void *)deserialize};
#endif
#ifdef NO_SYMBOL
const NNAdapterDriver *another_symbol(void);
const NNAdapterDriver *another_symbol(void) { return &driver; }
#else
const NNAdapterDriver *nnadapter_driver(uint32_t host_version) {
#ifdef REFUSES
    return host_version ? NULL : &driver;
#else
    (void)host_version;
    return &driver;
#endif
}
#endif
