/* Deserialization of a model, in the order that blob.c writes.
 *
 * After the first error all reads are empty; `status` is checked once, at the end. */
#include "blob.h"

#include <stdlib.h>
#include <string.h>

typedef struct source {
    acme_restored *into;
    const char *place;
    uint64_t left;
    NNAdapterStatus status;
} source;

static void spoil(source *from, NNAdapterStatus status) {
    if (!from->status) from->status = status;
    from->left = 0;
}

/* Return the next piece; null if fewer bytes remain. */
static const void *take(source *from, uint64_t count, uint64_t item_bytes) {
    uint64_t bytes = count * item_bytes, filled;
    if (count > from->left / item_bytes || (filled = bytes + -bytes % 8) > from->left) {
        spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
        return NULL;
    }
    const char *piece = from->place;
    from->place += filled;
    from->left -= filled;
    return piece;
}

static const char *take_text(source *from) {
    const uint64_t *bytes = take(from, 1, sizeof *bytes);
    const char *text = bytes ? take(from, *bytes, 1) : NULL;
    if (text && (!*bytes || text[*bytes - 1])) spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
    return text && *bytes ? text : "";
}

/* Allocate `count` zeroed elements, freed with the model. Each takes at least 8 bytes in the file, which bounds the
 * allocation. */
static void *room(source *from, uint64_t count, uint64_t item_bytes) {
    acme_restored *into = from->into;
    void *array = NULL;
    if (count > from->left / 8) {
        spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
        return NULL;
    }
    void **grown = realloc(into->made, (into->made_count + 1) * sizeof *grown);
    if (grown) into->made = grown;
    if (grown) array = calloc(count + 1, item_bytes);
    if (array)
        into->made[into->made_count++] = array;
    else
        spoil(from, NNADAPTER_OUT_OF_MEMORY);
    return array;
}

/* Read operand indices. */
static const int32_t *take_positions(source *from, uint32_t count, uint32_t operands, int32_t smallest) {
    const int32_t *positions = take(from, count, sizeof *positions);
    for (uint32_t i = 0; positions && i < count; i++)
        if (positions[i] < smallest || positions[i] >= (int64_t)operands) spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
    return positions;
}

static bool has_bytes(const int64_t *dimensions, uint32_t rank, uint64_t bytes) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (dimensions[i] < 0 || (count && (uint64_t)dimensions[i] > UINT64_MAX / sizeof(float) / count)) return false;
        count *= (uint64_t)dimensions[i];
    }
    return count * sizeof(float) == bytes;
}

static NNAdapterOperand operand_of(source *from) {
    static const acme_operand_row nothing;
    const acme_operand_row *row = take(from, 1, sizeof *row);
    if (!row) row = &nothing;
    NNAdapterOperand operand = {ACME_HEAD(NNAdapterOperand), .data_type = row->data_type, .layout = row->layout,
                             .lifetime = row->lifetime, .rank = row->rank, .bytes = row->bytes};
    operand.name = take_text(from);
    operand.dimensions = take(from, row->rank, sizeof *operand.dimensions);
    if (row->lifetime == NNADAPTER_CONSTANT) operand.data = take(from, row->bytes, 1);
    bool counted = row->data_type == NNADAPTER_FLOAT32; /* other types only pass from an input to an output */
    if (!operand.dimensions || (counted && !has_bytes(operand.dimensions, operand.rank, operand.bytes)))
        spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
    if (!operand.bytes) operand.data = NULL;
    return operand;
}

static NNAdapterAttribute attribute_of(source *from) {
    static const acme_attribute_row nothing;
    const acme_attribute_row *row = take(from, 1, sizeof *row);
    if (!row) row = &nothing;
    NNAdapterAttribute attribute = {ACME_HEAD(NNAdapterAttribute), .kind = row->kind, .count = row->count};
    attribute.name = take_text(from);
    switch (row->kind) {
    case NNADAPTER_KIND_BOOL: attribute.value.boolean = (int32_t)row->number; break;
    case NNADAPTER_KIND_INT: attribute.value.integer = row->number; break;
    case NNADAPTER_KIND_FLOAT: memcpy(&attribute.value.real, &row->number, sizeof attribute.value.real); break;
    case NNADAPTER_KIND_STRING: attribute.value.string = take_text(from); break;
    case NNADAPTER_KIND_INTS: attribute.value.integers = take(from, row->count, sizeof(int64_t)); break;
    case NNADAPTER_KIND_FLOATS: attribute.value.reals = take(from, row->count, sizeof(double)); break;
    default: spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
    }
    return attribute;
}

static NNAdapterOperation operation_of(source *from, uint32_t operands) {
    static const uint32_t nothing[4];
    const uint32_t *row = take(from, 4, sizeof *row);
    if (!row) row = nothing;
    NNAdapterOperation operation = {ACME_HEAD(NNAdapterOperation), .input_count = row[0], .output_count = row[1]};
    operation.type = take_text(from);
    operation.inputs = take_positions(from, row[0], operands, NNADAPTER_ABSENT);
    operation.outputs = take_positions(from, row[1], operands, 0);
    if (!row[1]) spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
    NNAdapterAttribute *attributes = room(from, row[2], sizeof *attributes);
    const NNAdapterAttribute **pointers = room(from, row[2], sizeof *pointers);
    for (; pointers && operation.attribute_count < row[2] && !from->status; operation.attribute_count++) {
        attributes[operation.attribute_count] = attribute_of(from);
        pointers[operation.attribute_count] = &attributes[operation.attribute_count];
    }
    operation.attributes = pointers;
    return operation;
}

static void restore(source *from, NNAdapterModel *model) {
    static const uint32_t nothing[4];
    const uint32_t *row = take(from, 4, sizeof *row);
    if (!row) row = nothing;
    *model = (NNAdapterModel){ACME_HEAD(NNAdapterModel), .operand_count = row[0], .operation_count = row[1],
                              .input_count = row[2], .output_count = row[3]};
    model->inputs = take_positions(from, row[2], row[0], 0);
    model->outputs = take_positions(from, row[3], row[0], 0);
    NNAdapterOperand *operands = room(from, row[0], sizeof *operands);
    const NNAdapterOperand **operand_pointers = room(from, row[0], sizeof *operand_pointers);
    NNAdapterOperation *operations = room(from, row[1], sizeof *operations);
    const NNAdapterOperation **operation_pointers = room(from, row[1], sizeof *operation_pointers);
    for (uint32_t i = 0; i < row[0] && !from->status; i++) {
        operands[i] = operand_of(from);
        operand_pointers[i] = &operands[i];
    }
    for (uint32_t i = 0; i < row[1] && !from->status; i++) {
        operations[i] = operation_of(from, row[0]);
        operation_pointers[i] = &operations[i];
    }
    model->operands = operand_pointers;
    model->operations = operation_pointers;
    if (from->left) spoil(from, NNADAPTER_INCOMPATIBLE_PROGRAM);
}

NNAdapterStatus acme_restore(const void *data, uint64_t bytes, acme_restored **restored, NNAdapterError *error) {
    acme_restored *result = calloc(1, sizeof *result);
    char *copy = malloc(bytes + 1); /* aligned, and independent of the host's buffer */
    if (result) result->bytes = copy;
    if (!result || !copy) {
        free(result);
        free(copy);
        return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a program");
    }
    memcpy(copy, data, bytes);
    source from = {.into = result, .place = copy, .left = bytes};
    restore(&from, &result->model);
    if (!from.status) {
        *restored = result;
        return NNADAPTER_OK;
    }
    acme_free_restored(result);
    return acme_fail(error, from.status, "the program's model cannot be read; compile it again");
}

void acme_free_restored(acme_restored *restored) {
    if (!restored) return;
    for (size_t i = 0; i < restored->made_count; i++) free(restored->made[i]);
    free(restored->made);
    free(restored->bytes);
    free(restored);
}
