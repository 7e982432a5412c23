/* Function table that the library exports. */
#include "acme.h"

static const NNAdapterDriver driver = {
    ACME_HEAD(NNAdapterDriver),
    .vendor = "Acme",
    .driver_version = ACME_VERSION,
    .open_device = acme_open_device,
    .close_device = acme_close_device,
    .create_context = acme_create_context,
    .destroy_context = acme_destroy_context,
    .supported = acme_supported,
    .compile = acme_compile,
    .destroy_program = acme_destroy_program,
    .create_execution = acme_create_execution,
    .destroy_execution = acme_destroy_execution,
    .compute = acme_compute,
    .list_devices = acme_list_devices,
    .describe_device = acme_describe_device,
    .admit = acme_admit,
    .memory = &acme_memory_functions,
    .streams = &acme_stream_functions,
    .serialization = &acme_serialization_functions,
    .clone_with_constants = acme_bind,
};

NNADAPTER_EXPORT const NNAdapterDriver *nnadapter_driver(uint32_t host_version) {
    return host_version >> 16 == NNADAPTER_VERSION_MAJOR ? &driver : NULL;
}
