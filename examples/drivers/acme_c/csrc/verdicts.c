/* Verdicts on operations, and admission of segments. */
#include "acme.h"

#include <string.h>

static bool knows_attributes(const acme_operation *supported_operation, const NNAdapterOperation *operation,
                             NNAdapterVerdict *verdict) {
    for (uint32_t i = 0; i < operation->attribute_count; i++) {
        const NNAdapterAttribute *attribute = operation->attributes[i];
        const char *const *name = supported_operation->attributes;
        while (*name && strcmp(*name, attribute->name)) name++;
        if (NNADAPTER_HAS(NNAdapterAttribute, attribute, sizes) && attribute->sizes) {
            acme_refuse(verdict, NNADAPTER_UNSUPPORTED_ATTRIBUTE, "%s has %s with dynamic sizes, accepted: static ones",
                        operation->type, attribute->name);
            return false;
        }
        if (*name) continue;
        if (!strcmp(attribute->name, "fuse_code") && !strcmp(attribute->value.string, "none")) continue;
        if (!strcmp(attribute->name, "fuse_parameters") && !attribute->count) continue;
        acme_refuse(verdict, NNADAPTER_UNSUPPORTED_ATTRIBUTE, "%s with %s is unsupported, accepted: without it",
                    operation->type, attribute->name);
        return false;
    }
    return true;
}

static bool takes_operand(const acme_operation *supported_operation, const NNAdapterOperation *operation,
                          const NNAdapterOperand *operand, NNAdapterVerdict *verdict) {
    const char *type = operation->type;
    if (operand->data_type != NNADAPTER_FLOAT32 || operand->quantization) {
        acme_refuse(verdict, NNADAPTER_UNSUPPORTED_DTYPE,
                    "%s got another type than float32 for %.128s, accepted: float32", type, operand->name);
        return false;
    }
    if (operand->layout != NNADAPTER_NCHW) {
        acme_refuse(verdict, NNADAPTER_UNSUPPORTED_ATTRIBUTE, "%s got an NHWC image for %.128s, accepted: NCHW", type,
                    operand->name);
        return false;
    }
    if (operand->rank > supported_operation->support.largest_rank) {
        acme_refuse(verdict, NNADAPTER_UNSUPPORTED_RANK, "%s got rank %u for %.128s, accepted: at most %u", type,
                    operand->rank, operand->name, supported_operation->support.largest_rank);
        return false;
    }
    return true;
}

void acme_judge(const NNAdapterContext *context, const NNAdapterModel *model, const NNAdapterOperation *operation,
                NNAdapterVerdict *verdict) {
    const acme_operation *supported_operation = acme_find(operation->type);
    if (!supported_operation) {
        acme_refuse(verdict, NNADAPTER_UNSUPPORTED_OPERATION, "acme_c has no kernel for %.64s", operation->type);
        return;
    }
    for (uint32_t i = 0; i < context->off_count; i++)
        if (!strcmp(context->off[i], operation->type)) {
            acme_refuse(verdict, NNADAPTER_SWITCHED_OFF, "%s is switched off", operation->type);
            return;
        }
    if (!knows_attributes(supported_operation, operation, verdict)) return;
    for (uint32_t i = 0; i < operation->input_count; i++)
        if (operation->inputs[i] != NNADAPTER_ABSENT &&
            !takes_operand(supported_operation, operation, model->operands[operation->inputs[i]], verdict))
            return;
    if (!takes_operand(supported_operation, operation, model->operands[operation->outputs[0]], verdict)) return;
    verdict->supported = 1;
}

NNAdapterStatus acme_supported(NNAdapterContext *context, const NNAdapterModel *model,
                               NNAdapterVerdict *const *verdicts, NNAdapterError *error) {
    (void)error;
    for (uint32_t i = 0; i < model->operation_count; i++) acme_judge(context, model, model->operations[i], verdicts[i]);
    return NNADAPTER_OK;
}

NNAdapterStatus acme_admit(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterAdmission *admission,
                           NNAdapterError *error) {
    acme_slots slots;
    NNAdapterStatus status = acme_plan_slots(model, &slots, error);
    if (status) return status;
    admission->memory_bytes = slots.total;
    uint64_t needed = slots.total; /* plus inputs, outputs and constants, which must fit too */
    for (uint32_t i = 0; i < model->operand_count && needed <= context->pool.limit; i++)
        if (model->operands[i]->lifetime != NNADAPTER_TEMPORARY) needed += acme_chunks(model->operands[i]->bytes);
    if (needed > context->pool.limit)
        acme_refuse(admission->verdict, NNADAPTER_MEMORY_LIMIT, "it takes %llu bytes or more, memory_bytes is %llu",
                    (unsigned long long)needed, (unsigned long long)context->pool.limit);
    acme_free_slots(&slots);
    return NNADAPTER_OK;
}
