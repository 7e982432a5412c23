/* ADD and RELU. */
#include "acme.h"

static void add_row(const float *x, int64_t x_step, const float *y, int64_t y_step, float *out, int64_t count) {
    if (x_step && y_step)
        for (int64_t i = 0; i < count; i++) out[i] = x[i] + y[i];
    else
        for (int64_t i = 0; i < count; i++) out[i] = x[i * x_step] + y[i * y_step];
}

void acme_add(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    (void)operation;
    int64_t x_steps[ACME_MOST_AXES + 1] = {0}, y_steps[ACME_MOST_AXES + 1] = {0}, place[ACME_MOST_AXES + 1] = {0};
    uint32_t axes = output->rank;
    int64_t count = axes ? output->dimensions[axes - 1] : 1;
    acme_broadcast(inputs[0].dimensions, inputs[0].rank, axes, x_steps);
    acme_broadcast(inputs[1].dimensions, inputs[1].rank, axes, y_steps);
    const float *x = inputs[0].data, *y = inputs[1].data;
    uint32_t last = axes ? axes - 1 : 0;
    for (int64_t done = 0; done < output->count; done += count) {
        add_row(x, x_steps[last], y, y_steps[last], output->data + done, count);
        for (uint32_t axis = last; axis-- > 0;) { /* advance to the next row, like an odometer */
            x += x_steps[axis];
            y += y_steps[axis];
            if (++place[axis] < output->dimensions[axis]) break;
            x -= x_steps[axis] * output->dimensions[axis];
            y -= y_steps[axis] * output->dimensions[axis];
            place[axis] = 0;
        }
    }
}

void acme_relu(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    (void)operation;
    const float *x = inputs[0].data;
    for (int64_t i = 0; i < output->count; i++) output->data[i] = x[i] < 0 ? 0 : x[i]; /* NaN stays NaN */
}
