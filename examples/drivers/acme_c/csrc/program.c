/* A program is a pointer to the model, which outlives it, and a memory plan. Clones with other constants share the
 * plan. The assignment of temporaries to slots does not depend on sizes; for dynamic shapes, each run computes their
 * bytes.
 *
 * An execution allocates device memory only while it computes: a session has executions of many programs, and the
 * device memory suffices for concurrent ones only. */
#include "acme.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct acme_plan {
    atomic_uint programs; /* reference count; programs are destroyed from any thread */
    acme_slots slots;
} acme_plan;

struct NNAdapterExecution {
    NNAdapterProgram *program;
    NNAdapterMemory **slots;
    uint64_t *bytes;     /* by slot */
    acme_tensor *values; /* by operand */
    int64_t *dimensions; /* memory of `values[].dimensions` for dynamic shapes; otherwise null */
};

static bool is_open(const NNAdapterModel *model) {
    return NNADAPTER_HAS(NNAdapterModel, model, size_count) && model->size_count;
}

static int64_t count_of(const NNAdapterOperand *operand) { return (int64_t)(operand->bytes / sizeof(float)); }

static NNAdapterStatus no_room(NNAdapterProgram *program, NNAdapterError *error) {
    free(program);
    return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a program");
}

NNAdapterStatus acme_compile(NNAdapterContext *context, const NNAdapterCompileRequest *request,
                             NNAdapterProgram **program, NNAdapterError *error) {
    double began = acme_now();
    const NNAdapterModel *model = request->model;
    for (uint32_t i = 0; i < model->operation_count; i++) {
        NNAdapterStatus status = acme_go_on(request->control, began, error);
        if (status) return status;
        if (!acme_find(model->operations[i]->type))
            return acme_fail(error, NNADAPTER_FAILED, "there is no kernel for %.64s", model->operations[i]->type);
        if (request->control->progress)
            request->control->progress(request->control->user, (i + 1.0) / model->operation_count);
    }
    return acme_make_program(context, model, program, error);
}

NNAdapterStatus acme_make_program(NNAdapterContext *context, const NNAdapterModel *model, NNAdapterProgram **program,
                                  NNAdapterError *error) {
    NNAdapterProgram *new_program = malloc(sizeof *new_program);
    acme_plan *shared = new_program ? malloc(sizeof *shared) : NULL;
    if (!shared) return no_room(new_program, error);
    *new_program = (NNAdapterProgram){.context = context, .model = model, .plan = shared};
    atomic_init(&shared->programs, 1);
    NNAdapterStatus status = acme_plan_slots(model, &shared->slots, error);
    if (status)
        acme_destroy_program(new_program); /* unplanned slots are empty */
    else
        *program = new_program;
    return status;
}

/* The plan does not depend on constants, and executions read them from the program's model. */
NNAdapterStatus acme_bind(NNAdapterProgram *program, const NNAdapterCompileRequest *request, NNAdapterProgram **bound,
                          NNAdapterError *error) {
    NNAdapterStatus status = acme_go_on(request->control, acme_now(), error);
    if (status) return status;
    NNAdapterProgram *new_program = malloc(sizeof *new_program);
    if (!new_program) return no_room(new_program, error);
    *new_program = (NNAdapterProgram){.context = program->context, .model = request->model, .plan = program->plan};
    atomic_fetch_add(&new_program->plan->programs, 1);
    *bound = new_program;
    return NNADAPTER_OK;
}

void acme_destroy_program(NNAdapterProgram *program) {
    if (atomic_fetch_sub(&program->plan->programs, 1) == 1) {
        acme_free_slots(&program->plan->slots);
        free(program->plan);
    }
    acme_free_restored(program->restored);
    free(program);
}

static void free_slots(NNAdapterExecution *execution) {
    for (uint32_t i = 0; i < execution->program->plan->slots.count; i++) {
        acme_free(execution->slots[i]);
        execution->slots[i] = NULL;
    }
}

static NNAdapterStatus allocate_slots(NNAdapterExecution *execution, NNAdapterError *error) {
    const NNAdapterProgram *program = execution->program;
    for (uint32_t i = 0; i < program->plan->slots.count; i++) {
        NNAdapterStatus status =
            acme_allocate(&program->context->pool, execution->bytes[i], &execution->slots[i], error);
        if (status) {
            free_slots(execution);
            return status;
        }
    }
    for (uint32_t i = 0; i < program->model->operand_count; i++) {
        int32_t slot = program->plan->slots.slot_of[i];
        if (slot >= 0) execution->values[i].data = (float *)(void *)execution->slots[slot]->data;
    }
    return NNADAPTER_OK;
}

/* Allocate dimensions of operands with dynamic shapes; false if out of memory. */
static bool make_room(NNAdapterExecution *execution) {
    const NNAdapterModel *model = execution->program->model;
    size_t ranks = 0;
    for (uint32_t i = 0; i < model->operand_count; i++) ranks += model->operands[i]->rank;
    execution->dimensions = malloc((ranks + 1) * sizeof *execution->dimensions);
    int64_t *room = execution->dimensions;
    for (uint32_t i = 0; room && i < model->operand_count; i++) {
        if (!model->operands[i]->sizes) continue;
        execution->values[i].dimensions = room;
        room += model->operands[i]->rank;
    }
    return room != NULL;
}

/* Set the sizes of operands for a run. */
static void resize(NNAdapterExecution *execution, const NNAdapterComputeRequest *request) {
    const NNAdapterModel *model = execution->program->model;
    for (uint32_t i = 0; i < model->operand_count; i++) {
        const NNAdapterOperand *operand = model->operands[i];
        if (!operand->sizes) continue;
        int64_t *dimensions = (int64_t *)execution->values[i].dimensions, count = 1;
        for (uint32_t axis = 0; axis < operand->rank; axis++) {
            int32_t place = operand->sizes[axis];
            dimensions[axis] = place < 0 ? operand->dimensions[axis] : request->sizes[place];
            count *= dimensions[axis];
        }
        execution->values[i].count = count;
    }
    acme_size_slots(&execution->program->plan->slots, execution->values, model->operand_count, execution->bytes);
}

NNAdapterStatus acme_create_execution(NNAdapterProgram *program, NNAdapterExecution **execution,
                                      NNAdapterError *error) {
    const NNAdapterModel *model = program->model;
    NNAdapterExecution *new_execution = calloc(1, sizeof *new_execution);
    if (new_execution) {
        new_execution->program = program;
        new_execution->slots = calloc(program->plan->slots.count + 1, sizeof *new_execution->slots);
        new_execution->values = calloc(model->operand_count + 1, sizeof *new_execution->values);
        new_execution->bytes = malloc((program->plan->slots.count + 1) * sizeof *new_execution->bytes);
    }
    NNAdapterStatus status = NNADAPTER_OK;
    if (!new_execution || !new_execution->slots || !new_execution->values || !new_execution->bytes ||
        (is_open(model) && !make_room(new_execution)))
        status = acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for an execution");
    if (status) {
        if (new_execution) acme_destroy_execution(new_execution);
        return status;
    }
    for (uint32_t i = 0; i < model->operand_count; i++) {
        const NNAdapterOperand *operand = model->operands[i];
        new_execution->values[i].data = (float *)operand->data; /* constants are read only */
        new_execution->values[i].rank = operand->rank;
        new_execution->values[i].count = count_of(operand);
        if (!new_execution->values[i].dimensions) new_execution->values[i].dimensions = operand->dimensions;
    }
    memcpy(new_execution->bytes, program->plan->slots.bytes, program->plan->slots.count * sizeof *new_execution->bytes);
    *execution = new_execution;
    return NNADAPTER_OK;
}

void acme_destroy_execution(NNAdapterExecution *execution) {
    free(execution->slots);
    free(execution->bytes);
    free(execution->values);
    free(execution->dimensions);
    free(execution);
}

static float *data_of(const NNAdapterTensor *tensor) {
    return tensor->memory ? (float *)(void *)(tensor->memory->data + tensor->memory_offset) : (float *)tensor->data;
}

/* Operations write outputs in place; outputs without an operation are copied at the end. */
static void place_values(NNAdapterExecution *execution, const NNAdapterComputeRequest *request) {
    const NNAdapterModel *model = execution->program->model;
    for (uint32_t i = model->output_count; i-- > 0;)
        if (model->operands[model->outputs[i]]->lifetime == NNADAPTER_MODEL_OUTPUT)
            execution->values[model->outputs[i]].data = data_of(request->outputs[i]);
    for (uint32_t i = 0; i < model->input_count; i++)
        execution->values[model->inputs[i]].data = data_of(request->inputs[i]);
}

static void step(NNAdapterExecution *execution, const NNAdapterOperation *operation) {
    acme_tensor inputs[3] = {{0}};
    for (uint32_t i = 0; i < operation->input_count && i < 3; i++)
        if (operation->inputs[i] != NNADAPTER_ABSENT) inputs[i] = execution->values[operation->inputs[i]];
    const acme_tensor *output = &execution->values[operation->outputs[0]];
    if (output->count) acme_find(operation->type)->kernel(operation, inputs, output);
}

static NNAdapterStatus run_steps(NNAdapterExecution *execution, const NNAdapterComputeRequest *request, double began,
                                 NNAdapterError *error) {
    const NNAdapterModel *model = execution->program->model;
    for (uint32_t i = 0; i < model->operation_count; i++) {
        NNAdapterStatus status = acme_go_on(request->control, began, error);
        if (status) return status;
        step(execution, model->operations[i]);
    }
    for (uint32_t i = 0; i < model->output_count; i++) {
        float *target = data_of(request->outputs[i]), *source = execution->values[model->outputs[i]].data;
        if (target != source && request->outputs[i]->bytes) memcpy(target, source, request->outputs[i]->bytes);
    }
    return NNADAPTER_OK;
}

static NNAdapterStatus run(NNAdapterExecution *execution, const NNAdapterComputeRequest *request, double began,
                           NNAdapterError *error) {
    if (is_open(execution->program->model)) resize(execution, request);
    NNAdapterStatus status = allocate_slots(execution, error);
    if (status) return status;
    place_values(execution, request);
    status = run_steps(execution, request, began, error);
    free_slots(execution);
    return status;
}

typedef struct computation {
    acme_task task;
    NNAdapterExecution *execution;
    const NNAdapterComputeRequest *request; /* valid until the stream is synchronized */
    double began;
} computation;

static NNAdapterStatus run_computation(acme_task *task, NNAdapterError *error) {
    computation *work = (computation *)task;
    return run(work->execution, work->request, work->began, error);
}

NNAdapterStatus acme_compute(NNAdapterExecution *execution, const NNAdapterComputeRequest *request,
                             NNAdapterError *error) {
    double began = acme_now();
    if (!request->stream) return run(execution, request, began, error);
    computation *work = malloc(sizeof *work);
    if (!work) return acme_fail(error, NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a task");
    *work = (computation){.task.run = run_computation, .execution = execution, .request = request, .began = began};
    acme_submit(request->stream, &work->task);
    return NNADAPTER_OK;
}
