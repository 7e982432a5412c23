/* FULLY_CONNECTED and MAT_MUL. */
#include "acme.h"

#include <string.h>

#define LANES 8

static float dot(const float *x, int64_t x_step, const float *y, int64_t depth) {
    float sums[LANES] = {0}, total = 0;
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES)
        for (int64_t lane = 0; lane < LANES; lane++) sums[lane] += x[(k + lane) * x_step] * y[k + lane];
    for (int64_t lane = 0; lane < LANES; lane++) total += sums[lane];
    for (; k < depth; k++) total += x[k * x_step] * y[k];
    return total;
}

typedef struct product { /* sizes of a product, and strides of x */
    int64_t rows, columns, depth, row_step, depth_step;
    bool y_transposed; /* y is [columns, depth] */
} product;

static void multiply(const product *size, const float *x, const float *y, float *out) {
    for (int64_t row = 0; row < size->rows; row++, out += size->columns) {
        const float *line = x + row * size->row_step;
        if (size->y_transposed) {
            for (int64_t column = 0; column < size->columns; column++)
                out[column] = dot(line, size->depth_step, y + column * size->depth, size->depth);
            continue;
        }
        memset(out, 0, (size_t)size->columns * sizeof *out);
        for (int64_t k = 0; k < size->depth; k++) {
            float factor = line[k * size->depth_step];
            const float *other = y + k * size->columns;
            for (int64_t column = 0; column < size->columns; column++) out[column] += factor * other[column];
        }
    }
}

void acme_fully_connected(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    (void)operation;
    const int64_t *weight = inputs[1].dimensions; /* [units, depth] */
    product size = {output->count / weight[0], weight[0], weight[1], weight[1], 1, true};
    multiply(&size, inputs[0].data, inputs[1].data, output->data);
    if (inputs[2].data)
        for (int64_t i = 0; i < output->count; i++) output->data[i] += inputs[2].data[i % weight[0]];
}

/* Rows and columns of a factor; a left vector is a row, a right vector is a column. */
static void matrix_size(const acme_tensor *tensor, bool left, int64_t size[2]) {
    const int64_t *end = tensor->dimensions + tensor->rank;
    size[0] = tensor->rank > 1 ? end[-2] : left ? 1 : end[-1];
    size[1] = tensor->rank > 1 || left ? end[-1] : 1;
}

void acme_mat_mul(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    const acme_tensor *x = &inputs[0], *y = &inputs[1];
    bool turned = acme_boolean(operation, "transpose_x");
    int64_t left[2], right[2], x_steps[ACME_MOST_AXES], y_steps[ACME_MOST_AXES], place[ACME_MOST_AXES] = {0};
    matrix_size(x, true, left);
    matrix_size(y, false, right);
    product size = {.rows = left[turned], .depth = left[!turned]};
    size.y_transposed = acme_boolean(operation, "transpose_y");
    size.columns = right[!size.y_transposed];
    size.row_step = turned ? 1 : left[1];
    size.depth_step = turned ? left[1] : 1;
    uint32_t x_axes = x->rank > 1 ? x->rank - 2 : 0, y_axes = y->rank > 1 ? y->rank - 2 : 0;
    uint32_t axes = x_axes > y_axes ? x_axes : y_axes;
    acme_broadcast(x->dimensions, x_axes, axes, x_steps);
    acme_broadcast(y->dimensions, y_axes, axes, y_steps);
    int64_t x_at = 0, y_at = 0; /* in matrices */
    for (int64_t done = 0; done < output->count; done += size.rows * size.columns) {
        multiply(&size, x->data + x_at * left[0] * left[1], y->data + y_at * right[0] * right[1], output->data + done);
        for (uint32_t axis = axes; axis-- > 0;) {
            x_at += x_steps[axis];
            y_at += y_steps[axis];
            if (++place[axis] < output->dimensions[axis]) break;
            x_at -= x_steps[axis] * output->dimensions[axis];
            y_at -= y_steps[axis] * output->dimensions[axis];
            place[axis] = 0;
        }
    }
}
