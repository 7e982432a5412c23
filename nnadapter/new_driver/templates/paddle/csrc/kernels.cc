#include "kernels.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/common/int_array.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/kernel_registry.h"
#include "tensors.h"
#include "views.h"

namespace nnadapter_paddle {
namespace {

using Attributes = std::vector<Attribute>;

Attributes without() { return {}; }
Attributes unfused() { return {text("fuse_code", "none"), reals("fuse_parameters", {})}; }
Attributes of_swish() { return {real("alpha", 1)}; }
Attributes of_hard_swish() { return {real("alpha", 1.0 / 6), real("beta", 0.5)}; }
Attributes of_relu6() { return {real("min", 0), real("max", 6)}; }

struct Row { /* a kernel of Paddle, and the operation that computes it */
    const char *kernel;
    const char *operation;
    Attributes (*attributes)();
};

/* One tensor in, one of its kind out. */
constexpr Row UNARY[] = {
    {"abs", "ABS", without},
    {"ceil", "CEIL", without},
    {"cos", "COS", without},
    {"erf", "ERF", without},
    {"exp", "EXP", without},
    {"floor", "FLOOR", without},
    {"hardswish", "HARD_SWISH", of_hard_swish},
    {"log", "LOG", without},
    {"reciprocal", "RECIPROCAL", without},
    {"relu", "RELU", without},
    {"relu6", "CLIP", of_relu6},
    {"rsqrt", "RSQRT", without},
    {"sigmoid", "SIGMOID", without},
    {"silu", "SWISH", of_swish},
    {"sin", "SIN", without},
    {"softsign", "SOFTSIGN", without},
    {"sqrt", "SQRT", without},
    {"square", "SQUARE", without},
    {"tanh", "TANH", without},
};

/* Two tensors in, broadcast against each other, one of their kind out. */
constexpr Row BINARY[] = {
    {"add", "ADD", unfused},       {"divide", "DIV", unfused},   {"elementwise_pow", "POW", without},
    {"maximum", "MAX", without},   {"minimum", "MIN", without},  {"multiply", "MUL", unfused},
    {"subtract", "SUB", unfused},
};

/* Two tensors in, one of booleans out. */
constexpr Row COMPARISONS[] = {
    {"equal", "EQUAL", without},
    {"greater_equal", "GREATER_EQUAL", without},
    {"greater_than", "GREATER", without},
    {"less_equal", "LESS_EQUAL", without},
    {"less_than", "LESS", without},
    {"not_equal", "NOT_EQUAL", without},
};

bool is_real(const Tensor &tensor) {
    return tensor.dtype() == phi::DataType::FLOAT32 || tensor.dtype() == phi::DataType::FLOAT64 ||
           tensor.dtype() == phi::DataType::FLOAT16 || tensor.dtype() == phi::DataType::BFLOAT16;
}

bool is_bool(const Tensor &tensor) { return tensor.dtype() == phi::DataType::BOOL; }

template <size_t row>
void unary(const Context &context, const Tensor &x, Tensor *out) {
    constexpr const Row &of = UNARY[row];
    if (is_real(x) && compute_on_device(context, of.operation, of.attributes(), {&x}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, Tensor *>(of.kernel, x.dtype(), context, x, out);
}

template <size_t row>
void binary(const Context &context, const Tensor &x, const Tensor &y, Tensor *out) {
    constexpr const Row &of = BINARY[row];
    const bool divides = std::string(of.operation) == "DIV" || std::string(of.operation) == "POW";
    /* Of integers, Paddle's are other ones; of booleans, the adapter IR has none. */
    const bool alike = x.dtype() == y.dtype() && (is_real(x) || !(divides || is_bool(x)));
    if (alike && compute_on_device(context, of.operation, of.attributes(), {&x, &y}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, const Tensor &, Tensor *>(of.kernel, x.dtype(), context, x, y, out);
}

template <size_t row>
void compare(const Context &context, const Tensor &x, const Tensor &y, Tensor *out) {
    constexpr const Row &of = COMPARISONS[row];
    const bool orders = std::string(of.operation) != "EQUAL" && std::string(of.operation) != "NOT_EQUAL";
    const bool alike = x.dtype() == y.dtype() && !(orders && is_bool(x)); /* the adapter IR has no order of booleans */
    if (alike && compute_on_device(context, of.operation, {}, {&x, &y}, 0, phi::DataType::BOOL, out)) return;
    compute_on_host<const Tensor &, const Tensor &, Tensor *>(of.kernel, x.dtype(), context, x, y, out);
}

void gelu(const Context &context, const Tensor &x, bool approximate, Tensor *out) {
    const Attributes attributes{text("approximate", approximate ? "tanh" : "none")};
    if (compute_on_device(context, "GELU", attributes, {&x}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, bool, Tensor *>("gelu", x.dtype(), context, x, approximate, out);
}

void leaky_relu(const Context &context, const Tensor &x, double alpha, Tensor *out) {
    if (compute_on_device(context, "LEAKY_RELU", {real("alpha", alpha)}, {&x}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, double, Tensor *>("leaky_relu", x.dtype(), context, x, alpha, out);
}

void elu(const Context &context, const Tensor &x, float alpha, Tensor *out) {
    if (compute_on_device(context, "ELU", {real("alpha", alpha)}, {&x}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, float, Tensor *>("elu", x.dtype(), context, x, alpha, out);
}

void softmax(const Context &context, const Tensor &x, int axis, Tensor *out) {
    const Attributes attributes{integer("axis", axis_of(axis, x))};
    if (x.dims().size() && compute_on_device(context, "SOFTMAX", attributes, {&x}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, int, Tensor *>("softmax", x.dtype(), context, x, axis, out);
}

/* The shape of a product whose leading axes are broadcast: of both tensors' axes, Paddle has only asked the longer. */
std::vector<int64_t> shape_of_product(const Tensor &x, const Tensor &y, const Tensor &out) {
    std::vector<int64_t> shape = dimensions_of(out);
    for (const Tensor *each : {&x, &y})
        for (int64_t axis = each->dims().size() - 3, place = static_cast<int64_t>(shape.size()) - 3;
             axis >= 0 && place >= 0; axis--, place--)
            if (each->dims()[axis] != 1) shape[place] = each->dims()[axis];
    return shape;
}

void matmul(const Context &context, const Tensor &x, const Tensor &y, bool transpose_x, bool transpose_y,
            Tensor *out) {
    if (x.dims().size() > 1 && y.dims().size() > 1) out->Resize(common::make_ddim(shape_of_product(x, y, *out)));
    /* Of a vector Paddle transposes nothing. */
    Attributes attributes{boolean("transpose_x", transpose_x && x.dims().size() > 1),
                          boolean("transpose_y", transpose_y && y.dims().size() > 1)};
    for (Attribute &each : unfused()) attributes.push_back(std::move(each));
    if (x.dtype() == y.dtype() && compute_on_device(context, "MAT_MUL", attributes, {&x, &y}, 0, x.dtype(), out))
        return;
    compute_on_host<const Tensor &, const Tensor &, bool, bool, Tensor *>("matmul", x.dtype(), context, x, y,
                                                                          transpose_x, transpose_y, out);
}

/* Pads as the adapter IR counts them (top, left, bottom, right); false for what Paddle says in another way. */
template <typename Number>
bool pads_of(const std::vector<Number> &pads, const std::string &algorithm, std::vector<int64_t> *found) {
    if (algorithm == "VALID")
        *found = {0, 0, 0, 0};
    else if (algorithm == "EXPLICIT" && pads.size() == 2)
        *found = {pads[0], pads[1], pads[0], pads[1]};
    else if (algorithm == "EXPLICIT" && pads.size() == 4)
        *found = {pads[0], pads[2], pads[1], pads[3]};
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
    for (Attribute &each : unfused()) attributes.push_back(std::move(each));
    return compute_on_device(context, "CONV_2D", attributes, {&input, &filter}, 1, input.dtype(), out);
}

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

struct Window {
    std::vector<int64_t> shape, strides, pads;
};

/* Whether the windows are those of the adapter IR. By `ceil_mode`, Paddle has windows of pads alone, too; and where pads
 * are counted, it takes those at an end to be as many as those at the beginning. */
bool windows_are_alike(const Tensor &x, const Window &window, bool average, bool exclusive, const Tensor &out) {
    for (int axis = 0; axis < 2; axis++) {
        const int64_t before = window.pads[axis], last = (out.dims()[axis + 2] - 1) * window.strides[axis] - before;
        if (last >= x.dims()[axis + 2]) return false;
        if (average && !exclusive && before != window.pads[axis + 2]) return false;
    }
    return true;
}

/* The window of a pool; false for an adaptive one whose windows differ, and for what Paddle says in another way. */
bool window_of(const Tensor &x, const phi::IntArray &kernel, const std::vector<int64_t> &strides,
               const std::vector<int64_t> &paddings, bool global, bool adaptive, const std::string &algorithm,
               Window *window) {
    const std::vector<int64_t> size{x.dims()[2], x.dims()[3]};
    const std::vector<int64_t> given = kernel.GetData();
    if (global) {
        *window = {size, {1, 1}, {0, 0, 0, 0}};
        return true;
    }
    if (given.size() != 2) return false;
    if (!adaptive) {
        window->shape = given;
        window->strides = strides;
        return pads_of(paddings, algorithm, &window->pads);
    }
    for (size_t axis = 0; axis < 2; axis++)
        if (given[axis] <= 0 || size[axis] % given[axis]) return false;
    const std::vector<int64_t> step{size[0] / given[0], size[1] / given[1]};
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

void transpose(const Context &context, const Tensor &x, const std::vector<int> &axis, Tensor *out) {
    std::vector<int64_t> perm;
    for (const int each : axis) perm.push_back(axis_of(each, x));
    const Attributes attributes{integers("perm", perm), text("output_layout", "NCHW")};
    if (compute_on_device(context, "TRANSPOSE", attributes, {&x}, 0, x.dtype(), out)) return;
    compute_on_host<const Tensor &, const std::vector<int> &, Tensor *>("transpose", x.dtype(), context, x, axis, out);
}

void concat(const Context &context, const Inputs &x, const phi::Scalar &axis, Tensor *out) {
    const Attributes attributes{integer("axis", axis_of(axis.to<int64_t>(), *x.front()))};
    if (compute_on_device(context, "CONCAT", attributes, x, 0, x.front()->dtype(), out)) return;
    compute_on_host<const Inputs &, const phi::Scalar &, Tensor *>("concat", x.front()->dtype(), context, x, axis,
                                                                   out);
}

Attributes of_reduction(const Tensor &x, const phi::IntArray &dims, bool keep_dim) {
    std::vector<int64_t> axes;
    for (const int64_t each : dims.GetData()) axes.push_back(axis_of(each, x));
    if (axes.empty())
        for (int64_t axis = 0; axis < x.dims().size(); axis++) axes.push_back(axis);
    std::sort(axes.begin(), axes.end());
    return {integers("axes", axes), boolean("keepdims", keep_dim)};
}

void mean(const Context &context, const Tensor &x, const phi::IntArray &dims, bool keep_dim, Tensor *out) {
    if (is_real(x) && x.dims().size() &&
        compute_on_device(context, "REDUCE_MEAN", of_reduction(x, dims, keep_dim), {&x}, 0, x.dtype(), out))
        return;
    compute_on_host<const Tensor &, const phi::IntArray &, bool, Tensor *>("mean", x.dtype(), context, x, dims,
                                                                           keep_dim, out);
}

void sum(const Context &context, const Tensor &x, const phi::IntArray &dims, phi::DataType type, bool keep_dim,
         Tensor *out) {
    if (is_real(x) && x.dims().size() && (type == phi::DataType::UNDEFINED || type == x.dtype()) &&
        compute_on_device(context, "REDUCE_SUM", of_reduction(x, dims, keep_dim), {&x}, 0, x.dtype(), out))
        return;
    compute_on_host<const Tensor &, const phi::IntArray &, phi::DataType, bool, Tensor *>("sum", x.dtype(), context, x,
                                                                                          dims, type, keep_dim, out);
}

void cast(const Context &context, const Tensor &x, phi::DataType type, Tensor *out) {
    if (data_type_of(type) && compute_on_device(context, "CAST", {text("to", name_of(type))}, {&x}, 0, type, out))
        return;
    compute_on_host<const Tensor &, phi::DataType, Tensor *>("cast", x.dtype(), context, x, type, out);
}

/* Paddle calls this one for every device, and gives CPU kernels no copies where it does. */
void full(const Context &context, const phi::IntArray &shape, const phi::Scalar &value, phi::DataType type,
          Tensor *out) {
    compute_on_host<const phi::IntArray &, const phi::Scalar &, phi::DataType, Tensor *>("full", type, context, shape,
                                                                                         value, type, out);
}

void as_ever(const phi::KernelKey &, phi::Kernel *) {}

void to_booleans(const phi::KernelKey &, phi::Kernel *kernel) {
    kernel->OutputAt(0).SetDataType(phi::DataType::BOOL);
}

void to_any(const phi::KernelKey &, phi::Kernel *kernel) {
    kernel->OutputAt(0).SetDataType(phi::DataType::UNDEFINED);
}

/* The data types of which Paddle's CPU kernel of this name has one with as many arguments, and the short reals, which
 * devices have rather than CPUs. */
std::set<phi::DataType> types_of(const char *name, const phi::KernelArgsDef &ours) {
    std::set<phi::DataType> types;
    const auto &known = phi::KernelFactory::Instance().kernels();
    const auto found = known.find(name);
    if (found == known.end()) return types;
    for (const auto &[key, kernel] : found->second) {
        const phi::KernelArgsDef &theirs = kernel.args_def();
        if (key.backend() == phi::Backend::CPU && key.layout() == phi::DataLayout::ALL_LAYOUT &&
            ours.input_defs().size() == theirs.input_defs().size() &&
            ours.attribute_defs().size() == theirs.attribute_defs().size() &&
            ours.output_defs().size() == theirs.output_defs().size())
            types.insert(key.dtype());
    }
    if (types.count(phi::DataType::FLOAT32)) types.insert({phi::DataType::FLOAT16, phi::DataType::BFLOAT16});
    return types;
}

template <auto function>
void add(const char *name, phi::KernelArgsDefFn define = as_ever) {
    using Implementation = phi::KernelImpl<decltype(function), function>;
    using Parser = phi::KernelArgsParseFunctor<decltype(function)>;
    phi::KernelArgsDef ours;
    Parser::Parse({phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, phi::DataType::FLOAT32}, &ours);
    for (const phi::DataType type : types_of(name, ours))
        phi::KernelRegistrar(phi::RegType::OUTER, name, NNADAPTER_PADDLE_DEVICE, phi::DataLayout::ALL_LAYOUT, type,
                             Parser::Parse, define, Implementation::Compute,
                             reinterpret_cast<void *>(&Implementation::VariadicCompute));
}

template <size_t... rows>
void add_tables(std::index_sequence<rows...>) {
    const auto one = [](auto row) {
        constexpr size_t at = decltype(row)::value;
        if constexpr (at < std::size(UNARY)) add<&unary<at>>(UNARY[at].kernel);
        if constexpr (at < std::size(BINARY)) add<&binary<at>>(BINARY[at].kernel);
        if constexpr (at < std::size(COMPARISONS)) add<&compare<at>>(COMPARISONS[at].kernel, to_booleans);
    };
    (one(std::integral_constant<size_t, rows>{}), ...);
}

}  // namespace

void register_kernels() {
    add_tables(std::make_index_sequence<std::size(UNARY)>{});
    add<&cast>("cast", to_any);
    add<&concat>("concat");
    add<&contiguous>("contiguous");
    add<&conv2d>("conv2d");
    add<&depthwise_conv2d>("depthwise_conv2d");
    add<&elu>("elu");
    add<&full>("full");
    add<&gelu>("gelu");
    add<&leaky_relu>("leaky_relu");
    add<&matmul>("matmul");
    add<&mean>("mean");
    add<&pool2d>("pool2d");
    add<&softmax>("softmax");
    add<&strided_copy>("strided_copy");
    add<&sum>("sum");
    add<&transpose>("transpose");
}

}  // namespace nnadapter_paddle
