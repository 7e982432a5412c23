#include "views.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "memory.h"

namespace nnadapter_paddle {
namespace {

/* Memory range of a view; with negative strides it begins before the first element. */
struct Extent {
    Extent(const std::vector<int64_t> &dims, const std::vector<int64_t> &strides) {
        for (size_t axis = 0; axis < dims.size(); axis++) {
            const int64_t step = (dims[axis] - 1) * strides[axis];
            if (step < 0) before -= step;
            count += std::abs(step);
        }
    }
    int64_t before = 0; /* in elements, like the next */
    int64_t count = 1;
};

/* Host copy of that range. */
std::vector<char> read(Device &device, const Tensor &view, const Extent &extent, size_t size) {
    std::vector<char> bytes(extent.count * size);
    const char *first = static_cast<const char *>(view.data()) - extent.before * size;
    copy_out(device, nullptr, bytes.data(), first, bytes.size());
    return bytes;
}

/* Calls `move(position in the view, offset in its extent)` for each element, in order. */
template <typename Move>
void walk(const std::vector<int64_t> &dims, const std::vector<int64_t> &strides, int64_t count, const Move &move) {
    std::vector<int64_t> at(dims.size(), 0);
    int64_t offset = Extent(dims, strides).before;
    for (int64_t position = 0; position < count; position++) {
        move(position, offset);
        for (size_t axis = dims.size(); axis-- > 0;) {
            offset += strides[axis];
            if (++at[axis] < dims[axis]) break;
            offset -= strides[axis] * dims[axis];
            at[axis] = 0;
        }
    }
}

/* Axes of a dense view, ordered by stride; empty for other views. */
std::vector<size_t> order_of(const std::vector<int64_t> &dims, const std::vector<int64_t> &strides) {
    std::vector<size_t> order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
    int64_t step = 1;
    for (size_t place = order.size(); place-- > 0;) {
        if (strides[order[place]] != step && dims[order[place]] != 1) return {};
        step *= dims[order[place]];
    }
    return order;
}

/* Computes a view that permutes axes by TRANSPOSE on the device. */
bool transpose_on_device(const Context &context, const Tensor &x, const std::vector<int64_t> &dims,
                         const std::vector<int64_t> &strides, Tensor *out) {
    const std::vector<size_t> order = order_of(dims, strides);
    if (order.empty()) return false;
    std::vector<int64_t> below(dims.size()), perm(dims.size());
    for (size_t place = 0; place < order.size(); place++) {
        below[place] = dims[order[place]];
        perm[order[place]] = static_cast<int64_t>(place);
    }
    Tensor base = x; /* shares the memory */
    phi::DenseTensorMeta meta(x.dtype(), common::make_ddim(below));
    meta.offset = x.meta().offset;
    base.set_meta(meta);
    return compute_on_device(context, "TRANSPOSE", {integers("perm", perm), text("output_layout", "NCHW")}, {&base}, 0,
                             x.dtype(), out);
}

}  // namespace

void contiguous(const Context &context, const Tensor &x, Tensor *out) {
    phi::DenseTensorMeta meta = x.meta();
    meta.strides = meta.calc_strides(meta.dims);
    meta.offset = 0;
    out->set_meta(meta);
    const std::vector<int64_t> dims = dimensions_of(x), strides = common::vectorize<int64_t>(x.strides());
    if (x.numel() && transpose_on_device(context, x, dims, strides, out)) return;
    context.Alloc(out, x.dtype());
    if (!x.numel()) return;
    Device &device = nnadapter_paddle::device(context.GetPlace().GetDeviceId());
    const size_t size = phi::SizeOf(x.dtype());
    const std::vector<char> from = read(device, x, Extent(dims, strides), size);
    std::vector<char> to(x.numel() * size);
    walk(dims, strides, x.numel(), [&](int64_t position, int64_t offset) {
        std::memcpy(&to[position * size], &from[offset * size], size);
    });
    copy_in(device, nullptr, out->data(), to.data(), to.size());
}

void strided_copy(const Context &context, const Tensor &input, const std::vector<int64_t> &dims,
                  const std::vector<int64_t> &out_stride, int64_t offset, Tensor *out) {
    phi::DenseTensorMeta meta = input.meta();
    meta.dims = common::make_ddim(dims);
    meta.strides = common::make_ddim(out_stride);
    meta.offset = offset;
    out->set_meta(meta);
    if (!input.numel()) return;
    Device &device = nnadapter_paddle::device(context.GetPlace().GetDeviceId());
    const size_t size = phi::SizeOf(input.dtype());
    const std::vector<int64_t> input_dims = dimensions_of(input);
    const std::vector<int64_t> input_strides = common::vectorize<int64_t>(input.strides());
    const Extent extent(dims, out_stride);
    const std::vector<char> from = read(device, input, Extent(input_dims, input_strides), size);
    std::vector<char> flat(input.numel() * size);
    std::vector<char> to = read(device, *out, extent, size); /* bytes between the view's elements are unchanged */
    walk(input_dims, input_strides, input.numel(), [&](int64_t position, int64_t at) {
        std::memcpy(&flat[position * size], &from[at * size], size);
    });
    walk(dims, out_stride, input.numel(), [&](int64_t position, int64_t at) {
        std::memcpy(&to[at * size], &flat[position * size], size);
    });
    copy_in(device, nullptr, static_cast<char *>(out->data()) - extent.before * size, to.data(), to.size());
}

}  // namespace nnadapter_paddle
