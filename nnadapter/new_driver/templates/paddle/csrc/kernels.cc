#include "kernels.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/common/int_array.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/kernel_registry.h"
#include "tensors.h"
#include "views.h"
#include "windows.h"

namespace nnadapter_paddle {
namespace {

using Attributes = std::vector<Attribute>;

Attributes without() { return {}; }
Attributes of_swish() { return {real("alpha", 1)}; }
Attributes of_hard_swish() { return {real("alpha", 1.0 / 6), real("beta", 0.5)}; }
Attributes of_relu6() { return {real("min", 0), real("max", 6)}; }

/* Types for which Paddle's kernel and the operation agree: DIV of integers differs, and the adapter IR neither adds nor
 * orders booleans. */
enum Types { REALS, NUMBERS, ANY };

struct Row { /* kernel of Paddle, and its operation */
    const char *kernel;
    const char *operation;
    Types types;
    Attributes (*attributes)();
};

/* One input; output of the same type. */
constexpr Row UNARY[] = {
    {"abs", "ABS", REALS, without},
    {"ceil", "CEIL", REALS, without},
    {"cos", "COS", REALS, without},
    {"erf", "ERF", REALS, without},
    {"exp", "EXP", REALS, without},
    {"floor", "FLOOR", REALS, without},
    {"hardswish", "HARD_SWISH", REALS, of_hard_swish},
    {"log", "LOG", REALS, without},
    {"reciprocal", "RECIPROCAL", REALS, without},
    {"relu", "RELU", REALS, without},
    {"relu6", "CLIP", REALS, of_relu6},
    {"rsqrt", "RSQRT", REALS, without},
    {"sigmoid", "SIGMOID", REALS, without},
    {"silu", "SWISH", REALS, of_swish},
    {"sin", "SIN", REALS, without},
    {"softsign", "SOFTSIGN", REALS, without},
    {"sqrt", "SQRT", REALS, without},
    {"square", "SQUARE", REALS, without},
    {"tanh", "TANH", REALS, without},
};

/* Two inputs with broadcast; output of the same type. */
constexpr Row BINARY[] = {
    {"add", "ADD", NUMBERS, unfused},
    {"divide", "DIV", REALS, unfused},
    {"elementwise_pow", "POW", REALS, without},
    {"maximum", "MAX", NUMBERS, without},
    {"minimum", "MIN", NUMBERS, without},
    {"multiply", "MUL", NUMBERS, unfused},
    {"subtract", "SUB", NUMBERS, unfused},
};

/* Two inputs; boolean output. */
constexpr Row COMPARISONS[] = {
    {"equal", "EQUAL", ANY, without},
    {"greater_equal", "GREATER_EQUAL", NUMBERS, without},
    {"greater_than", "GREATER", NUMBERS, without},
    {"less_equal", "LESS_EQUAL", NUMBERS, without},
    {"less_than", "LESS", NUMBERS, without},
    {"not_equal", "NOT_EQUAL", ANY, without},
};

bool is_real(const Tensor &tensor) {
    return tensor.dtype() == phi::DataType::FLOAT32 || tensor.dtype() == phi::DataType::FLOAT64 ||
           tensor.dtype() == phi::DataType::FLOAT16 || tensor.dtype() == phi::DataType::BFLOAT16;
}

bool is_of(const Tensor &tensor, Types types) {
    return types == ANY || is_real(tensor) || (types == NUMBERS && tensor.dtype() != phi::DataType::BOOL);
}

template <size_t row>
void unary(const Context &context, const Tensor &x, Tensor *out) {
    constexpr const Row &of = UNARY[row];
    if (is_of(x, of.types) && compute_on_device(context, of.operation, of.attributes(), {&x}, 0, x.dtype(), out))
        return;
    compute_on_host<const Tensor &, Tensor *>(of.kernel, x.dtype(), context, x, out);
}

template <size_t row>
void binary(const Context &context, const Tensor &x, const Tensor &y, Tensor *out) {
    constexpr const Row &of = BINARY[row];
    if (x.dtype() == y.dtype() && is_of(x, of.types) &&
        compute_on_device(context, of.operation, of.attributes(), {&x, &y}, 0, x.dtype(), out))
        return;
    compute_on_host<const Tensor &, const Tensor &, Tensor *>(of.kernel, x.dtype(), context, x, y, out);
}

template <size_t row>
void compare(const Context &context, const Tensor &x, const Tensor &y, Tensor *out) {
    constexpr const Row &of = COMPARISONS[row];
    if (x.dtype() == y.dtype() && is_of(x, of.types) &&
        compute_on_device(context, of.operation, of.attributes(), {&x, &y}, 0, phi::DataType::BOOL, out))
        return;
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

/* Shape of a product with broadcast leading axes; Paddle infers it from the tensor of higher rank only. */
std::vector<int64_t> shape_of_product(const Tensor &x, const Tensor &y, const Tensor &out) {
    std::vector<int64_t> shape = dimensions_of(out);
    for (const Tensor *tensor : {&x, &y})
        for (int64_t axis = tensor->dims().size() - 3, place = static_cast<int64_t>(shape.size()) - 3;
             axis >= 0 && place >= 0; axis--, place--)
            if (tensor->dims()[axis] != 1) shape[place] = tensor->dims()[axis];
    return shape;
}

void matmul(const Context &context, const Tensor &x, const Tensor &y, bool transpose_x, bool transpose_y,
            Tensor *out) {
    if (x.dims().size() > 1 && y.dims().size() > 1) out->Resize(common::make_ddim(shape_of_product(x, y, *out)));
    /* Paddle ignores transposition of a vector. */
    Attributes attributes{boolean("transpose_x", transpose_x && x.dims().size() > 1),
                          boolean("transpose_y", transpose_y && y.dims().size() > 1)};
    for (Attribute &attribute : unfused()) attributes.push_back(std::move(attribute));
    if (x.dtype() == y.dtype() && compute_on_device(context, "MAT_MUL", attributes, {&x, &y}, 0, x.dtype(), out))
        return;
    compute_on_host<const Tensor &, const Tensor &, bool, bool, Tensor *>("matmul", x.dtype(), context, x, y,
                                                                          transpose_x, transpose_y, out);
}

void transpose(const Context &context, const Tensor &x, const std::vector<int> &axis, Tensor *out) {
    std::vector<int64_t> perm;
    for (const int number : axis) perm.push_back(axis_of(number, x));
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
    for (const int64_t number : dims.GetData()) axes.push_back(axis_of(number, x));
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

/* Paddle calls this kernel for every device, without host copies for its CPU kernel. */
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

/* Data types of Paddle's CPU kernels of a name with the same number of arguments, and the 16-bit floating-point types,
 * which devices support more often than CPUs. */
std::set<phi::DataType> types_of(const char *name, const phi::KernelArgsDef &ours) {
    std::set<phi::DataType> types;
    const auto &all_kernels = phi::KernelFactory::Instance().kernels();
    const auto entry = all_kernels.find(name);
    if (entry == all_kernels.end()) return types;
    for (const auto &[key, kernel] : entry->second) {
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

/* Kernel that converts all errors to Paddle's exceptions; others would end the process. */
template <auto function>
struct Guarded;
template <typename... Arguments, void (*function)(Arguments...)>
struct Guarded<function> {
    static void compute(Arguments... arguments) {
        try {
            function(arguments...);
        } catch (const std::bad_alloc &) {
            raise(NNADAPTER_OUT_OF_MEMORY, "the host has no memory left for a kernel of '" NNADAPTER_PADDLE_DEVICE "'");
        } catch (const std::logic_error &error) {
            raise(NNADAPTER_FAILED, std::string("a kernel of '" NNADAPTER_PADDLE_DEVICE "' failed: ") + error.what());
        }
    }
};

template <auto function>
void add(const char *name, phi::KernelArgsDefFn define = as_ever) {
    using Implementation = phi::KernelImpl<decltype(function), &Guarded<function>::compute>;
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
    const auto register_row = [](auto row) {
        constexpr size_t at = decltype(row)::value;
        if constexpr (at < std::size(UNARY)) add<&unary<at>>(UNARY[at].kernel);
        if constexpr (at < std::size(BINARY)) add<&binary<at>>(BINARY[at].kernel);
        if constexpr (at < std::size(COMPARISONS)) add<&compare<at>>(COMPARISONS[at].kernel, to_booleans);
    };
    (register_row(std::integral_constant<size_t, rows>{}), ...);
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
