#include "windows.h"

#include "operation.h"

namespace nnadapter_paddle {
namespace {

using Attributes = std::vector<Attribute>;

/* Pads of the adapter IR (top, left, bottom, right); false if Paddle's have no such form. */
template <typename Number>
bool pads_of(const std::vector<Number> &pads, const std::string &algorithm, std::vector<int64_t> *result) {
    if (algorithm == "VALID")
        *result = {0, 0, 0, 0};
    else if (algorithm == "EXPLICIT" && pads.size() == 2)
        *result = {pads[0], pads[1], pads[0], pads[1]};
    else if (algorithm == "EXPLICIT" && pads.size() == 4)
        *result = {pads[0], pads[2], pads[1], pads[3]};
    else
        return false;
    return true;
}

bool convolve(const Context &context, const Tensor &input, const Tensor &filter, const std::vector<int> &strides,
              const std::vector<int> &paddings, const std::string &algorithm, const std::vector<int> &dilations,
              int groups, const std::string &format, Tensor *out) {
    std::vector<int64_t> pads;
    if (format != "NCHW" || !pads_of(paddings, algorithm, &pads)) return false;
    Attributes attributes{integers("strides", {strides.begin(), strides.end()}), integers("pads", pads),
                          integers("dilations", {dilations.begin(), dilations.end()}), integer("group", groups)};
    for (Attribute &attribute : unfused()) attributes.push_back(std::move(attribute));
    return compute_on_device(context, "CONV_2D", attributes, {&input, &filter}, 1, input.dtype(), out);
}

struct Window {
    std::vector<int64_t> shape, strides, pads;
};

/* True if the windows equal those of the adapter IR. With `ceil_mode`, Paddle also has windows of pads only. If pads
 * count, Paddle assumes as many at the end as at the beginning. */
bool windows_are_alike(const Tensor &x, const Window &window, bool average, bool exclusive, const Tensor &out) {
    for (int axis = 0; axis < 2; axis++) {
        const int64_t before = window.pads[axis], last = (out.dims()[axis + 2] - 1) * window.strides[axis] - before;
        if (last >= x.dims()[axis + 2]) return false;
        if (average && !exclusive && before != window.pads[axis + 2]) return false;
    }
    return true;
}

/* Window of a pool; false for adaptive pools with different windows, and pads without such a form. */
bool window_of(const Tensor &x, const phi::IntArray &kernel, const std::vector<int64_t> &strides,
               const std::vector<int64_t> &paddings, bool global, bool adaptive, const std::string &algorithm,
               Window *window) {
    const std::vector<int64_t> size{x.dims()[2], x.dims()[3]};
    const std::vector<int64_t> requested = kernel.GetData();
    if (global) {
        *window = {size, {1, 1}, {0, 0, 0, 0}};
        return true;
    }
    if (requested.size() != 2) return false;
    if (!adaptive) {
        window->shape = requested;
        window->strides = strides;
        return pads_of(paddings, algorithm, &window->pads);
    }
    for (size_t axis = 0; axis < 2; axis++)
        if (requested[axis] <= 0 || size[axis] % requested[axis]) return false;
    const std::vector<int64_t> step{size[0] / requested[0], size[1] / requested[1]};
    *window = {step, step, {0, 0, 0, 0}};
    return true;
}

bool pool(const Context &context, const Tensor &x, const Window &window, bool ceil_mode, bool exclusive,
          const std::string &type, Tensor *out) {
    if (!windows_are_alike(x, window, type != "max", exclusive, *out)) return false;
    Attributes attributes{integers("kernel_shape", window.shape), integers("strides", window.strides),
                          integers("pads", window.pads), integers("dilations", {1, 1}),
                          boolean("ceil_mode", ceil_mode)};
    if (type == "max") return compute_on_device(context, "MAX_POOL_2D", attributes, {&x}, 0, x.dtype(), out);
    attributes.push_back(boolean("count_include_pad", !exclusive));
    return compute_on_device(context, "AVERAGE_POOL_2D", attributes, {&x}, 0, x.dtype(), out);
}

}  // namespace

void conv2d(const Context &context, const Tensor &input, const Tensor &filter, const std::vector<int> &strides,
            const std::vector<int> &paddings, const std::string &algorithm, const std::vector<int> &dilations,
            int groups, const std::string &format, Tensor *out) {
    if (convolve(context, input, filter, strides, paddings, algorithm, dilations, groups, format, out)) return;
    compute_on_host<const Tensor &, const Tensor &, const std::vector<int> &, const std::vector<int> &,
                    const std::string &, const std::vector<int> &, int, const std::string &, Tensor *>(
        "conv2d", input.dtype(), context, input, filter, strides, paddings, algorithm, dilations, groups, format, out);
}

void depthwise_conv2d(const Context &context, const Tensor &input, const Tensor &filter,
                      const std::vector<int> &strides, const std::vector<int> &paddings, const std::string &algorithm,
                      int groups, const std::vector<int> &dilations, const std::string &format, Tensor *out) {
    if (convolve(context, input, filter, strides, paddings, algorithm, dilations, groups, format, out)) return;
    compute_on_host<const Tensor &, const Tensor &, const std::vector<int> &, const std::vector<int> &,
                    const std::string &, int, const std::vector<int> &, const std::string &, Tensor *>(
        "depthwise_conv2d", input.dtype(), context, input, filter, strides, paddings, algorithm, groups, dilations,
        format, out);
}

void pool2d(const Context &context, const Tensor &x, const phi::IntArray &kernel, const std::vector<int64_t> &strides,
            const std::vector<int64_t> &paddings, bool ceil_mode, bool exclusive, const std::string &format,
            const std::string &type, bool global, bool adaptive, const std::string &algorithm, Tensor *out) {
    Window window;
    if (format == "NCHW" && window_of(x, kernel, strides, paddings, global, adaptive, algorithm, &window) &&
        pool(context, x, window, ceil_mode, exclusive || adaptive || global, type, out))
        return;
    compute_on_host<const Tensor &, const phi::IntArray &, const std::vector<int64_t> &, const std::vector<int64_t> &,
                    bool, bool, const std::string &, const std::string &, bool, bool, const std::string &, Tensor *>(
        "pool2d", x.dtype(), context, x, kernel, strides, paddings, ceil_mode, exclusive, format, type, global,
        adaptive, algorithm, out);
}

}  // namespace nnadapter_paddle
