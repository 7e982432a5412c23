/* Context: options, and a share of the device's memory. */
#include "acme.h"

#include <stdlib.h>
#include <string.h>

static bool copy_names(NNAdapterContext *context, const NNAdapterAttribute *option) {
    context->off = calloc(option->count ? option->count : 1, sizeof *context->off);
    if (!context->off) return false;
    for (; context->off_count < option->count; context->off_count++) {
        char *name = strdup(option->value.strings[context->off_count]);
        if (!name) return false;
        context->off[context->off_count] = name;
    }
    return true;
}

NNAdapterStatus acme_create_context(NNAdapterDevice *device, uint32_t count, const NNAdapterAttribute *const *options,
                                    NNAdapterContext **context, NNAdapterError *error) {
    NNAdapterContext *new_context = calloc(1, sizeof *new_context);
    if (!new_context) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a context");
    new_context->device = device;
    uint64_t limit = ACME_DEVICE_BYTES;
    NNAdapterStatus status = NNADAPTER_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        if (!strcmp(options[i]->name, "memory_bytes"))
            limit = (uint64_t)options[i]->value.integer;
        else if (!strcmp(options[i]->name, "switched_off") && !copy_names(new_context, options[i]))
            status = acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a context");
    }
    for (uint32_t i = 0; i < new_context->off_count && !status; i++)
        if (!acme_find(new_context->off[i]))
            status = acme_fail(error, NNADAPTER_INVALID_ARGUMENT,
                               "switched_off names %.64s, which the device does not have; see `nnadapter ops`",
                               new_context->off[i]);
    acme_pool_init(&new_context->pool, &device->pool, limit);
    if (status)
        acme_destroy_context(new_context);
    else
        *context = new_context;
    return status;
}

void acme_destroy_context(NNAdapterContext *context) {
    for (uint32_t i = 0; i < context->off_count; i++) free(context->off[i]);
    free(context->off);
    acme_pool_end(&context->pool);
    free(context);
}
