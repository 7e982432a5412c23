/* Stands in front of a driver and refuses a segment one of whose constants begins with the number of rows that go in:
 * what is said of it hangs on sizes and on contents. Counts segments that it would have refused and was to make. Of 8
 * rows more than such a constant begins with, it refuses the operation that reads it. Counts what it was asked. */
#include "nnadapter_driver.h"

#undef nnadapter_driver

static const NNAdapterDriver *within;
static NNAdapterDriver table;
static int asked, refused, forced, judged, refused_operations;

NNADAPTER_EXPORT int refusing_asked(void) { return asked; }
NNADAPTER_EXPORT int refusing_refused(void) { return refused; }
NNADAPTER_EXPORT int refusing_forced(void) { return forced; }
NNADAPTER_EXPORT int refusing_judged(void) { return judged; }
NNADAPTER_EXPORT int refusing_refused_operations(void) { return refused_operations; }

static int refuses(const NNAdapterModel *model) {
    if (model->input_count == 0) {
        return 0;
    }
    const NNAdapterOperand *first = model->operands[model->inputs[0]];
    for (uint32_t index = 0; index < model->operand_count; index++) {
        const NNAdapterOperand *operand = model->operands[index];
        if (operand->data != NULL && operand->data_type == NNADAPTER_FLOAT32 && first->rank > 0 &&
            *(const float *)operand->data == (float)first->dimensions[0]) {
            return 1;
        }
    }
    return 0;
}

static int refuses_operation(const NNAdapterModel *model, const NNAdapterOperation *operation) {
    const NNAdapterOperand *made = model->operands[operation->outputs[0]];
    for (uint32_t index = 0; index < operation->input_count; index++) {
        if (operation->inputs[index] == NNADAPTER_ABSENT) {
            continue;
        }
        const NNAdapterOperand *operand = model->operands[operation->inputs[index]];
        if (operand->data != NULL && made->rank > 0 && made->dimensions[0] > 8 &&
            *(const float *)operand->data + 8.0f == (float)made->dimensions[0]) {
            return 1;
        }
    }
    return 0;
}

static NNAdapterStatus supported(NNAdapterContext *context, const NNAdapterModel *model,
                                 NNAdapterVerdict *const *verdicts, NNAdapterError *error) {
    NNAdapterStatus status = within->supported(context, model, verdicts, error);
    judged++;
    for (uint32_t index = 0; index < model->operation_count; index++) {
        if (refuses_operation(model, model->operations[index])) {
            refused_operations++;
            verdicts[index]->supported = 0;
            verdicts[index]->reason = NNADAPTER_DEVICE_REFUSED;
        }
    }
    return status;
}

static NNAdapterStatus admit(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterAdmission *admission,
                             NNAdapterError *error) {
    asked++;
    if (refuses(model)) {
        refused++;
        admission->verdict->supported = 0;
        admission->verdict->reason = NNADAPTER_DEVICE_REFUSED;
        return NNADAPTER_OK;
    }
    return within->admit(context, model, admission, error);
}

static NNAdapterStatus compile(NNAdapterContext *context, const NNAdapterCompileRequest *request,
                               NNAdapterProgram **program, NNAdapterError *error) {
    forced += refuses(request->model);
    return within->compile(context, request, program, error);
}

static NNAdapterStatus bind(NNAdapterProgram *program, const NNAdapterCompileRequest *request,
                            NNAdapterProgram **bound, NNAdapterError *error) {
    forced += refuses(request->model);
    return within->clone_with_constants(program, request, bound, error);
}

const NNAdapterDriver *inner_driver(uint32_t host_version);

NNADAPTER_EXPORT const NNAdapterDriver *nnadapter_driver(uint32_t host_version) {
    within = inner_driver(host_version);
    if (within == NULL) {
        return NULL;
    }
    table = *within;
    table.supported = supported;
    table.admit = admit;
    table.compile = compile;
    table.clone_with_constants = bind;
    return &table;
}
