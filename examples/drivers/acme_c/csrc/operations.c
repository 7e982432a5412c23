/* Table of operations, for verdicts, `nnadapter ops` and execution. */
#include "acme.h"

#include <string.h>

static const int32_t FLOAT32[] = {NNADAPTER_FLOAT32};
static const char *const NONE[] = {NULL};
static const char *const CONVOLUTION[] = {"strides", "pads", "dilations", "group", NULL};
static const char *const POOLING[] = {"kernel_shape", "strides",           "pads", "dilations",
                                      "ceil_mode",    "count_include_pad", NULL};
static const char *const PRODUCT[] = {"transpose_x", "transpose_y", NULL};

#define SUPPORT(type_, smallest, largest)                                                                     \
    {ACME_HEAD(NNAdapterOperationSupport), .type = type_, .data_type_count = 1, .data_types = FLOAT32, \
     .smallest_rank = smallest, .largest_rank = largest}

const acme_operation acme_operations[] = {
    {SUPPORT("ADD", 0, ACME_MOST_AXES), acme_add, NONE},
    {SUPPORT("AVERAGE_POOL_2D", 4, 4), acme_average_pool, POOLING},
    {SUPPORT("CONV_2D", 4, 4), acme_convolution, CONVOLUTION},
    {SUPPORT("FULLY_CONNECTED", 1, ACME_MOST_AXES), acme_fully_connected, NONE},
    {SUPPORT("MAT_MUL", 1, ACME_MOST_AXES), acme_mat_mul, PRODUCT},
    {SUPPORT("MAX_POOL_2D", 4, 4), acme_max_pool, POOLING},
    {SUPPORT("RELU", 0, ACME_MOST_AXES), acme_relu, NONE},
};
const uint32_t acme_operation_count = sizeof acme_operations / sizeof *acme_operations;
const NNAdapterOperationSupport *const acme_support[] = {
    &acme_operations[0].support, &acme_operations[1].support, &acme_operations[2].support, &acme_operations[3].support,
    &acme_operations[4].support, &acme_operations[5].support, &acme_operations[6].support,
};

const acme_operation *acme_find(const char *type) {
    for (uint32_t i = 0; i < acme_operation_count; i++)
        if (!strcmp(acme_operations[i].support.type, type)) return &acme_operations[i];
    return NULL;
}

const NNAdapterAttribute *acme_attribute(const NNAdapterOperation *operation, const char *name) {
    for (uint32_t i = 0; i < operation->attribute_count; i++)
        if (!strcmp(operation->attributes[i]->name, name)) return operation->attributes[i];
    return NULL;
}

const int64_t *acme_integers(const NNAdapterOperation *operation, const char *name) {
    return acme_attribute(operation, name)->value.integers;
}

int64_t acme_integer(const NNAdapterOperation *operation, const char *name) {
    return acme_attribute(operation, name)->value.integer;
}

bool acme_boolean(const NNAdapterOperation *operation, const char *name) {
    const NNAdapterAttribute *attribute = acme_attribute(operation, name);
    return attribute && attribute->value.boolean;
}

void acme_broadcast(const int64_t *dimensions, uint32_t rank, uint32_t axes, int64_t *steps) {
    int64_t step = 1;
    for (uint32_t axis = axes; axis-- > 0;) {
        bool there = axes - axis <= rank;
        int64_t size = there ? dimensions[rank - (axes - axis)] : 1;
        steps[axis] = size == 1 ? 0 : step;
        step *= size;
    }
}
