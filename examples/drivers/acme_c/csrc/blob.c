/* Serialized programs: a header, then the model. Memory is planned again on load.
 *
 * The header suffices to identify a program. The pieces after it are padded to multiples of 8 bytes: numbers as in
 * memory, strings with their final 0. restore.c reads them in the same order. */
#include "blob.h"

#include <stdlib.h>
#include <string.h>

typedef struct sink {
    const NNAdapterWriter *writer; /* null to compute size and checksum only */
    uint64_t bytes, checksum;
    NNAdapterStatus status;
} sink;

uint64_t acme_checksum(uint64_t before, const void *data, uint64_t bytes) {
    const char *place = data;
    for (uint64_t word; bytes; bytes -= bytes < 8 ? bytes : 8, place += 8) {
        word = 0;
        memcpy(&word, place, bytes < 8 ? bytes : 8);
        before = (before ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        before ^= before >> 29;
    }
    return before;
}

static void put(sink *to, const void *data, uint64_t bytes) {
    static const char zeros[8];
    uint64_t rest = -bytes % 8;
    to->checksum = acme_checksum(to->checksum, data, bytes);
    to->bytes += bytes + rest;
    if (to->writer && !to->status && bytes) to->status = to->writer->write(to->writer->user, data, bytes);
    if (to->writer && !to->status && rest) to->status = to->writer->write(to->writer->user, zeros, rest);
}

static void put_text(sink *to, const char *text) {
    uint64_t bytes = strlen(text) + 1;
    put(to, &bytes, sizeof bytes);
    put(to, text, bytes);
}

static void put_operand(sink *to, const NNAdapterOperand *operand) {
    acme_operand_row row = {operand->data_type, operand->layout, operand->lifetime, operand->rank, operand->bytes};
    put(to, &row, sizeof row);
    put_text(to, operand->name);
    put(to, operand->dimensions, operand->rank * sizeof *operand->dimensions);
    if (operand->lifetime == NNADAPTER_CONSTANT) put(to, operand->data, operand->bytes);
}

static void put_attribute(sink *to, const NNAdapterAttribute *attribute) {
    acme_attribute_row row = {attribute->kind, attribute->count, 0};
    if (attribute->kind == NNADAPTER_KIND_BOOL) row.number = attribute->value.boolean;
    if (attribute->kind == NNADAPTER_KIND_INT) row.number = attribute->value.integer;
    if (attribute->kind == NNADAPTER_KIND_FLOAT) memcpy(&row.number, &attribute->value.real, sizeof row.number);
    put(to, &row, sizeof row);
    put_text(to, attribute->name);
    if (attribute->kind == NNADAPTER_KIND_STRING) put_text(to, attribute->value.string);
    if (attribute->kind == NNADAPTER_KIND_INTS) put(to, attribute->value.integers, attribute->count * sizeof(int64_t));
    if (attribute->kind == NNADAPTER_KIND_FLOATS) put(to, attribute->value.reals, attribute->count * sizeof(double));
}

static void put_operation(sink *to, const NNAdapterOperation *operation) {
    uint32_t row[4] = {operation->input_count, operation->output_count, operation->attribute_count, 0};
    put(to, row, sizeof row);
    put_text(to, operation->type);
    put(to, operation->inputs, operation->input_count * sizeof *operation->inputs);
    put(to, operation->outputs, operation->output_count * sizeof *operation->outputs);
    for (uint32_t i = 0; i < operation->attribute_count; i++) put_attribute(to, operation->attributes[i]);
}

static sink put_model(const NNAdapterModel *model, const NNAdapterWriter *writer) {
    sink to = {.writer = writer};
    uint32_t row[4] = {model->operand_count, model->operation_count, model->input_count, model->output_count};
    put(&to, row, sizeof row);
    put(&to, model->inputs, model->input_count * sizeof *model->inputs);
    put(&to, model->outputs, model->output_count * sizeof *model->outputs);
    for (uint32_t i = 0; i < model->operand_count; i++) put_operand(&to, model->operands[i]);
    for (uint32_t i = 0; i < model->operation_count; i++) put_operation(&to, model->operations[i]);
    return to;
}

static NNAdapterStatus serialize(NNAdapterProgram *program, const NNAdapterWriter *writer, NNAdapterError *error) {
    (void)error;
    sink counted = put_model(program->model, NULL);
    acme_head head = {.magic = ACME_MAGIC, .chip = ACME_CHIP, .format = ACME_FORMAT, .release = ACME_RELEASE,
                      .bytes = counted.bytes, .checksum = counted.checksum};
    NNAdapterStatus status = writer->write(writer->user, &head, sizeof head);
    return status ? status : put_model(program->model, writer).status;
}

/* Reads the header only: the other bytes may be in a file and not loaded. */
static int32_t check_blob(NNAdapterContext *context, const void *data, uint64_t bytes) {
    (void)context; /* options only refuse, and deserialize checks them */
    const acme_head ours = {.magic = ACME_MAGIC, .chip = ACME_CHIP};
    acme_head head;
    if (bytes < sizeof head) return NNADAPTER_INCOMPATIBLE;
    memcpy(&head, data, sizeof head);
    if (memcmp(head.magic, ours.magic, sizeof head.magic) || memcmp(head.chip, ours.chip, sizeof head.chip))
        return NNADAPTER_INCOMPATIBLE;
    if (head.format != ACME_FORMAT || head.release > ACME_RELEASE || head.bytes != bytes - sizeof head)
        return NNADAPTER_RECOMPILE;
    return head.release == ACME_RELEASE ? NNADAPTER_IDENTICAL : NNADAPTER_COMPATIBLE;
}

static NNAdapterStatus incompatible(NNAdapterError *error) {
    return acme_fail(error, NNADAPTER_INCOMPATIBLE_PROGRAM,
                     "the program is damaged, or of another device or version; compile the model again");
}

/* Operations that the context refuses fail here too, with the verdict's detail as message. */
static NNAdapterStatus judge(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterError *error) {
    NNAdapterVerdict verdict = {ACME_HEAD(NNAdapterVerdict), .detail = error->message, .capacity = error->capacity};
    NNAdapterAdmission admission = {ACME_HEAD(NNAdapterAdmission), .verdict = &verdict};
    for (uint32_t i = 0; i < model->operation_count; i++) {
        verdict.supported = 0;
        acme_judge(context, model, model->operations[i], &verdict);
        if (!verdict.supported) return NNADAPTER_INCOMPATIBLE_PROGRAM;
    }
    verdict.supported = 1;
    NNAdapterStatus status = acme_admit(context, model, &admission, error);
    return status || verdict.supported ? status : NNADAPTER_INCOMPATIBLE_PROGRAM;
}

static NNAdapterStatus deserialize(NNAdapterContext *context, const NNAdapterDeserializeRequest *request,
                                   NNAdapterProgram **program, NNAdapterError *error) {
    int32_t says = check_blob(context, request->data, request->bytes);
    if (says != NNADAPTER_IDENTICAL && says != NNADAPTER_COMPATIBLE) return incompatible(error);
    acme_head head;
    memcpy(&head, request->data, sizeof head);
    const char *behind = (const char *)request->data + sizeof head;
    if (acme_checksum(0, behind, head.bytes) != head.checksum) return incompatible(error);
    acme_restored *restored = NULL;
    NNAdapterStatus status = acme_restore(behind, head.bytes, &restored, error);
    if (!status) status = judge(context, &restored->model, error);
    if (!status) status = acme_make_program(context, &restored->model, program, error);
    if (status)
        acme_free_restored(restored);
    else
        (*program)->restored = restored;
    return status;
}

const NNAdapterSerializationFunctions acme_serialization_functions = {
    ACME_HEAD(NNAdapterSerializationFunctions),
    .serialize = serialize,
    .deserialize = deserialize,
    .check_blob = check_blob,
};
