/* Temporaries with disjoint lifetimes share a slot. Each takes the most recently freed slot. */
#include "acme.h"

#include <stdlib.h>
#include <string.h>

static bool is_temporary(const NNAdapterModel *model, int32_t operand) {
    return operand != NNADAPTER_ABSENT && model->operands[operand]->lifetime == NNADAPTER_TEMPORARY;
}

static void find_last_readers(const NNAdapterModel *model, uint32_t *last) {
    for (uint32_t i = 0; i < model->operation_count; i++) {
        const NNAdapterOperation *operation = model->operations[i];
        for (uint32_t j = 0; j < operation->output_count; j++) last[operation->outputs[j]] = i;
        for (uint32_t j = 0; j < operation->input_count; j++)
            if (operation->inputs[j] != NNADAPTER_ABSENT) last[operation->inputs[j]] = i;
    }
}

/* `leave`: push a slot without further readers on the free list. */
static void leave(acme_slots *slots, int32_t operand, uint32_t *pile, uint32_t *free_count) {
    pile[(*free_count)++] = (uint32_t)slots->slot_of[operand];
}

static void assign(const NNAdapterModel *model, acme_slots *slots, uint32_t *last, uint32_t *pile) {
    uint32_t free_count = 0;
    for (uint32_t i = 0; i < model->operation_count; i++) {
        const NNAdapterOperation *operation = model->operations[i];
        for (uint32_t j = 0; j < operation->output_count; j++) {
            int32_t operand = operation->outputs[j];
            if (!is_temporary(model, operand)) continue;
            uint32_t slot = free_count ? pile[--free_count] : slots->count++;
            slots->slot_of[operand] = (int32_t)slot;
            uint64_t bytes = model->operands[operand]->bytes;
            if (bytes > slots->bytes[slot]) slots->bytes[slot] = bytes;
        }
        for (uint32_t j = 0; j < operation->output_count; j++)
            if (is_temporary(model, operation->outputs[j]) && last[operation->outputs[j]] == i)
                leave(slots, operation->outputs[j], pile, &free_count);
        for (uint32_t j = 0; j < operation->input_count; j++) {
            int32_t operand = operation->inputs[j];
            if (!is_temporary(model, operand) || last[operand] != i) continue;
            leave(slots, operand, pile, &free_count);
            last[operand] = UINT32_MAX; /* it may be an input twice */
        }
    }
}

NNAdapterStatus acme_plan_slots(const NNAdapterModel *model, acme_slots *slots, NNAdapterError *error) {
    size_t count = model->operand_count ? model->operand_count : 1;
    *slots = (acme_slots){.slot_of = malloc(count * sizeof(int32_t)), .bytes = calloc(count, sizeof(uint64_t))};
    uint32_t *last = calloc(count, sizeof *last), *pile = calloc(count, sizeof *pile);
    bool is_allocated = slots->slot_of && slots->bytes && last && pile;
    if (is_allocated) {
        memset(slots->slot_of, -1, count * sizeof(int32_t));
        find_last_readers(model, last);
        assign(model, slots, last, pile);
        for (uint32_t i = 0; i < slots->count; i++) slots->total += acme_chunks(slots->bytes[i]);
    } else {
        acme_free_slots(slots);
    }
    free(last);
    free(pile);
    if (is_allocated) return NNADAPTER_OK;
    return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a plan");
}

void acme_size_slots(const acme_slots *slots, const acme_tensor *values, uint32_t operand_count, uint64_t *bytes) {
    memset(bytes, 0, slots->count * sizeof *bytes);
    for (uint32_t i = 0; i < operand_count; i++) {
        uint64_t needed = (uint64_t)values[i].count * sizeof(float);
        int32_t slot = slots->slot_of[i];
        if (slot >= 0 && needed > bytes[slot]) bytes[slot] = needed;
    }
}

void acme_free_slots(acme_slots *slots) {
    free(slots->slot_of);
    free(slots->bytes);
    *slots = (acme_slots){0};
}
