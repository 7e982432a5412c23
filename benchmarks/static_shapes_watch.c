/* Stands in front of a driver and adds up the seconds that its own functions take to judge, to compile and to compute.
 *
 * The driver's sources are compiled with -Dnnadapter_driver=watched_driver, and this file with them. */
#include <time.h>

#include "nnadapter_driver.h"

#undef nnadapter_driver

static const NNAdapterDriver *watched;
static NNAdapterDriver table;
static NNAdapterStreamFunctions streams;
static double total;

NNADAPTER_EXPORT double watched_seconds(void) { return total; }

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

#define WATCHED(call)                     \
    do {                                  \
        double begun = now();             \
        NNAdapterStatus status = (call);  \
        total += now() - begun;           \
        return status;                    \
    } while (0)

static NNAdapterStatus supported(NNAdapterContext *context, const NNAdapterModel *model,
                                 NNAdapterVerdict *const *verdicts, NNAdapterError *error) {
    WATCHED(watched->supported(context, model, verdicts, error));
}

static NNAdapterStatus admit(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterAdmission *admission,
                             NNAdapterError *error) {
    WATCHED(watched->admit(context, model, admission, error));
}

static NNAdapterStatus compile(NNAdapterContext *context, const NNAdapterCompileRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error) {
    WATCHED(watched->compile(context, request, program, error));
}

static NNAdapterStatus bind(NNAdapterProgram *program, const NNAdapterCompileRequest *request,
                            NNAdapterProgram **bound, NNAdapterError *error) {
    WATCHED(watched->clone_with_constants(program, request, bound, error));
}

static NNAdapterStatus create_execution(NNAdapterProgram *program, NNAdapterExecution **execution,
                                        NNAdapterError *error) {
    WATCHED(watched->create_execution(program, execution, error));
}

static NNAdapterStatus compute(NNAdapterExecution *execution, const NNAdapterComputeRequest *request,
                               NNAdapterError *error) {
    WATCHED(watched->compute(execution, request, error));
}

static NNAdapterStatus synchronize_stream(NNAdapterStream *stream, NNAdapterError *error) {
    WATCHED(watched->streams->synchronize_stream(stream, error));
}

const NNAdapterDriver *watched_driver(uint32_t host_version);

NNADAPTER_EXPORT const NNAdapterDriver *nnadapter_driver(uint32_t host_version) {
    watched = watched_driver(host_version);
    if (watched == NULL) {
        return NULL;
    }
    table = *watched;
    table.supported = supported;
    table.compile = compile;
    table.create_execution = create_execution;
    table.compute = compute;
    if (watched->streams) {
        streams = *watched->streams;
        streams.synchronize_stream = synchronize_stream;
        table.streams = &streams;
    }
    table.admit = watched->admit ? admit : NULL;
    table.clone_with_constants = watched->clone_with_constants ? bind : NULL;
    return &table;
}
