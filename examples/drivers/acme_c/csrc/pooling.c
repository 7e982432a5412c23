/* MAX_POOL_2D and AVERAGE_POOL_2D. */
#include "acme.h"

#include <math.h>

typedef struct window {
    const int64_t *kernel, *strides, *pads, *dilations, *image;
} window;

typedef float (*pool)(const window *window, const float *pixels, int64_t top, int64_t left, bool include_pad);

static float largest(const window *window, const float *pixels, int64_t top, int64_t left, bool include_pad) {
    (void)include_pad;
    float maximum = -INFINITY;
    for (int64_t i = 0; i < window->kernel[0]; i++)
        for (int64_t j = 0; j < window->kernel[1]; j++) {
            int64_t y = top + i * window->dilations[0], x = left + j * window->dilations[1];
            if (y < 0 || x < 0 || y >= window->image[2] || x >= window->image[3]) continue;
            float value = pixels[y * window->image[3] + x];
            if (value > maximum || isnan(value)) maximum = value;
            if (isnan(maximum)) return maximum;
        }
    return maximum;
}

static bool inside(const window *window, int axis, int64_t place, bool include_pad) {
    int64_t before = include_pad ? window->pads[axis] : 0, after = include_pad ? window->pads[axis + 2] : 0;
    return place >= -before && place < window->image[2 + axis] + after;
}

static float average(const window *window, const float *pixels, int64_t top, int64_t left, bool include_pad) {
    float sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < window->kernel[0]; i++)
        for (int64_t j = 0; j < window->kernel[1]; j++) {
            int64_t y = top + i * window->dilations[0], x = left + j * window->dilations[1];
            count += inside(window, 0, y, include_pad) && inside(window, 1, x, include_pad);
            if (y < 0 || x < 0 || y >= window->image[2] || x >= window->image[3]) continue;
            sum += pixels[y * window->image[3] + x];
        }
    return count ? sum / (float)count : 0;
}

static void run(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output, pool pool) {
    window window = {acme_integers(operation, "kernel_shape"), acme_integers(operation, "strides"),
                     acme_integers(operation, "pads"), acme_integers(operation, "dilations"), inputs[0].dimensions};
    bool include_pad = acme_boolean(operation, "count_include_pad");
    const int64_t *result = output->dimensions;
    float *out = output->data;
    for (int64_t plane = 0; plane < result[0] * result[1]; plane++) {
        const float *pixels = inputs[0].data + plane * window.image[2] * window.image[3];
        for (int64_t y = 0; y < result[2]; y++)
            for (int64_t x = 0; x < result[3]; x++)
                *out++ = pool(&window, pixels, y * window.strides[0] - window.pads[0],
                              x * window.strides[1] - window.pads[1], include_pad);
    }
}

void acme_max_pool(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    run(operation, inputs, output, largest);
}

void acme_average_pool(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    run(operation, inputs, output, average);
}
