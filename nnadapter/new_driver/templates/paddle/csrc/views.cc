#include "views.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "memory.h"

namespace nnadapter_paddle {
namespace {

/* Elements from a view's first one to its last. */
int64_t reach_of(const std::vector<int64_t> &dims, const std::vector<int64_t> &strides) {
    int64_t reach = 1;
    for (size_t axis = 0; axis < dims.size(); axis++) reach += (dims[axis] - 1) * strides[axis];
    return reach;
}

/* Calls `move(position in the view, offset in its memory)`, in elements, for each in order. */
template <typename Move>
void walk(const std::vector<int64_t> &dims, const std::vector<int64_t> &strides, int64_t count, const Move &move) {
    std::vector<int64_t> at(dims.size(), 0);
    int64_t offset = 0;
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

/* The axes of a view whose elements lie without gaps, ordered by stride; none for another view. */
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

/* A view that only changes the order of axes, computed on the device as the transposition that it is. */
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
    auto *stream = reinterpret_cast<Stream *>(context.stream());
    const size_t size = phi::SizeOf(x.dtype());
    std::vector<char> from(reach_of(dims, strides) * size), to(x.numel() * size);
    copy_out(device, stream, from.data(), x.data(), from.size());
    settle(device, stream);
    walk(dims, strides, x.numel(), [&](int64_t position, int64_t offset) {
        std::memcpy(&to[position * size], &from[offset * size], size);
    });
    copy_in(device, stream, out->data(), to.data(), to.size());
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
    auto *stream = reinterpret_cast<Stream *>(context.stream());
    const size_t size = phi::SizeOf(input.dtype());
    const std::vector<int64_t> input_strides = common::vectorize<int64_t>(input.strides());
    std::vector<char> from(reach_of(dimensions_of(input), input_strides) * size);
    std::vector<char> flat(input.numel() * size), to(reach_of(dims, out_stride) * size);
    copy_out(device, stream, from.data(), input.data(), from.size());
    copy_out(device, stream, to.data(), out->data(), to.size()); /* what lies between the view's elements stays */
    settle(device, stream);
    walk(dimensions_of(input), input_strides, input.numel(), [&](int64_t position, int64_t at) {
        std::memcpy(&flat[position * size], &from[at * size], size);
    });
    walk(dims, out_stride, input.numel(), [&](int64_t position, int64_t at) {
        std::memcpy(&to[at * size], &flat[position * size], size);
    });
    copy_in(device, stream, out->data(), to.data(), to.size());
}

}  // namespace nnadapter_paddle
