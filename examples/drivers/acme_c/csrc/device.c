/* Two devices, to allow copies between them. */
#include "acme.h"

#include <stdlib.h>

static const NNAdapterDeviceInfo infos[ACME_DEVICES] = {
    {ACME_HEAD(NNAdapterDeviceInfo), .id = "0", .sub_type = ACME_CHIP, .device_version = "rev 2",
     .type = NNADAPTER_ACCELERATOR, .available = 1},
    {ACME_HEAD(NNAdapterDeviceInfo), .id = "1", .sub_type = ACME_CHIP, .device_version = "rev 2",
     .type = NNADAPTER_ACCELERATOR, .available = 1},
};
static const NNAdapterDeviceInfo *const list[ACME_DEVICES] = {&infos[0], &infos[1]};

NNAdapterStatus acme_list_devices(const NNAdapterDeviceInfo *const **devices, uint32_t *count, NNAdapterError *error) {
    (void)error;
    *devices = list;
    *count = ACME_DEVICES;
    return NNADAPTER_OK;
}

NNAdapterStatus acme_open_device(const char *id, NNAdapterDevice **device, NNAdapterError *error) {
    if (id[0] && ((id[0] != '0' && id[0] != '1') || id[1]))
        return acme_fail(error, NNADAPTER_INVALID_ARGUMENT, "there is no device %.32s; there are 0 and 1", id);
    NNAdapterDevice *new_device = calloc(1, sizeof *new_device);
    if (!new_device) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a device");
    acme_pool_init(&new_device->pool, NULL, ACME_DEVICE_BYTES);
    pthread_mutex_init(&new_device->lock, NULL);
    *device = new_device;
    return NNADAPTER_OK;
}

void acme_close_device(NNAdapterDevice *device) {
    pthread_mutex_destroy(&device->lock);
    acme_pool_end(&device->pool);
    free(device);
}

static const NNAdapterAttribute memory_bytes = {
    ACME_HEAD(NNAdapterAttribute), .name = "memory_bytes", .kind = NNADAPTER_KIND_INT, .count = 1,
    .value.integer = ACME_DEVICE_BYTES};
static const NNAdapterAttribute switched_off = {
    ACME_HEAD(NNAdapterAttribute), .name = "switched_off", .kind = NNADAPTER_KIND_STRINGS, .count = 0};
static const NNAdapterOption options[] = {
    {ACME_HEAD(NNAdapterOption), .value = &memory_bytes, .help = "Bytes of device memory that a context may take.",
     .has_minimum = 1, .minimum = 0, .affects_speed = 0},
    {ACME_HEAD(NNAdapterOption), .value = &switched_off, .help = "Operations to refuse.", .affects_speed = 0},
};
static const NNAdapterOption *const option_list[] = {&options[0], &options[1]};

NNAdapterStatus acme_describe_device(NNAdapterDevice *device, NNAdapterCapability *capability, NNAdapterError *error) {
    (void)device, (void)error;
    capability->threading = NNADAPTER_EXCLUSIVE;
    capability->memory_bytes = ACME_DEVICE_BYTES;
    capability->option_count = sizeof options / sizeof *options;
    capability->options = option_list;
    capability->operation_count = acme_operation_count;
    capability->operations = acme_support;
    capability->limits = "float32, images NCHW, no fused activations";
    if (NNADAPTER_HAS(NNAdapterCapability, capability, largest_size)) { /* missing in older hosts */
        capability->dynamic_shapes = ACME_OPEN_SIZES;
        capability->largest_size = ACME_LARGEST_SIZE;
    }
    return NNADAPTER_OK;
}
