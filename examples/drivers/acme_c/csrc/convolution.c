/* CONV_2D: for each row of the result, every filter element adds a shifted row of the image. */
#include "acme.h"

typedef struct axis {
    int64_t size, taps, stride, dilation, before, results;
} axis;

static int64_t up(int64_t value, int64_t divisor) { return value <= 0 ? 0 : (value + divisor - 1) / divisor; }

/* Add `factor` times the pixels under a filter element to a row of results. */
static void add_tap(float factor, const float *pixels, int64_t tap, const axis *across, float *row) {
    int64_t shift = tap * across->dilation - across->before;
    int64_t first = up(-shift, across->stride), end = up(across->size - shift, across->stride);
    if (end > across->results) end = across->results;
    if (across->stride == 1)
        for (int64_t i = first; i < end; i++) row[i] += factor * pixels[i + shift];
    else
        for (int64_t i = first; i < end; i++) row[i] += factor * pixels[i * across->stride + shift];
}

static void add_channel(const float *image, const float *filter, int64_t y, const axis *down, const axis *across,
                        float *row) {
    for (int64_t tap = 0; tap < down->taps; tap++) {
        int64_t from = y * down->stride + tap * down->dilation - down->before;
        if (from < 0 || from >= down->size) continue;
        for (int64_t k = 0; k < across->taps; k++)
            add_tap(filter[tap * across->taps + k], image + from * across->size, k, across, row);
    }
}

void acme_convolution(const NNAdapterOperation *operation, const acme_tensor *inputs, const acme_tensor *output) {
    const int64_t *image = inputs[0].dimensions, *filter = inputs[1].dimensions, *result = output->dimensions;
    const int64_t *strides = acme_integers(operation, "strides"), *pads = acme_integers(operation, "pads");
    const int64_t *dilations = acme_integers(operation, "dilations");
    int64_t per_group = filter[0] / acme_integer(operation, "group"), taps = filter[2] * filter[3];
    axis down = {image[2], filter[2], strides[0], dilations[0], pads[0], result[2]};
    axis across = {image[3], filter[3], strides[1], dilations[1], pads[1], result[3]};
    int64_t plane = image[2] * image[3];
    float *row = output->data;
    for (int64_t index = 0; index < result[0] * result[1]; index++) {
        int64_t batch = index / result[1], channel = index % result[1];
        const float *weights = inputs[1].data + channel * filter[1] * taps;
        const float *pixels = inputs[0].data + (batch * image[1] + channel / per_group * filter[1]) * plane;
        float bias = inputs[2].data ? inputs[2].data[channel] : 0;
        for (int64_t y = 0; y < result[2]; y++, row += result[3]) {
            for (int64_t i = 0; i < result[3]; i++) row[i] = bias;
            for (int64_t k = 0; k < filter[1]; k++)
                add_channel(pixels + k * plane, weights + k * taps, y, &down, &across, row);
        }
    }
}
