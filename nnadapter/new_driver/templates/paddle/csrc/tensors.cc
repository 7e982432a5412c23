#include "tensors.h"

#include <algorithm>

#include "memory.h"

namespace nnadapter_paddle {
namespace {

struct TypeRow {
    phi::DataType type;
    int32_t data_type;
    const char *name;
};
const TypeRow TYPES[] = {
    {phi::DataType::BOOL, NNADAPTER_BOOL, "bool"},          {phi::DataType::INT8, NNADAPTER_INT8, "int8"},
    {phi::DataType::INT16, NNADAPTER_INT16, "int16"},       {phi::DataType::INT32, NNADAPTER_INT32, "int32"},
    {phi::DataType::INT64, NNADAPTER_INT64, "int64"},       {phi::DataType::UINT8, NNADAPTER_UINT8, "uint8"},
    {phi::DataType::FLOAT16, NNADAPTER_FLOAT16, "float16"}, {phi::DataType::BFLOAT16, NNADAPTER_BFLOAT16, "bfloat16"},
    {phi::DataType::FLOAT32, NNADAPTER_FLOAT32, "float32"}, {phi::DataType::FLOAT64, NNADAPTER_FLOAT64, "float64"},
};

const TypeRow *row_of(phi::DataType type) {
    for (const TypeRow &row : TYPES)
        if (row.type == type) return &row;
    return nullptr;
}

Value value_of(const Tensor &tensor, phi::DataType type) {
    return {data_type_of(type), name_of(type), dimensions_of(tensor), const_cast<void *>(tensor.data()),
            static_cast<uint64_t>(tensor.numel()) * phi::SizeOf(type)};
}

bool can_be_given(const Tensor &tensor) {
    return tensor.initialized() && tensor.numel() > 0 && tensor.meta().is_contiguous() && data_type_of(tensor.dtype());
}

}  // namespace

int32_t data_type_of(phi::DataType type) { return row_of(type) ? row_of(type)->data_type : 0; }

const char *name_of(phi::DataType type) { return row_of(type) ? row_of(type)->name : "undefined"; }

std::vector<int64_t> dimensions_of(const Tensor &tensor) { return common::vectorize<int64_t>(tensor.dims()); }

int64_t axis_of(int64_t axis, const Tensor &tensor) { return axis < 0 ? axis + tensor.dims().size() : axis; }

bool compute_on_device(const Context &context, const char *operation, std::vector<Attribute> attributes,
                       const Inputs &inputs, uint32_t absent, phi::DataType type, Tensor *out) {
    if (!data_type_of(type) || out->numel() <= 0) return false;
    Operation call{operation, std::move(attributes), {}, absent, {}};
    for (const Tensor *input : inputs) {
        if (!can_be_given(*input)) return false;
        call.inputs.push_back(value_of(*input, input->dtype()));
    }
    /* Drivers must not alias inputs and outputs, so in-place kernels need a temporary. `out` is unchanged until the
     * device accepts: it may be an input of another type, which the fallback still reads. */
    const bool in_place = std::any_of(inputs.begin(), inputs.end(),
                                      [&](const Tensor *input) { return input->IsSharedBufferWith(*out); });
    Tensor aside;
    Tensor *target = in_place ? &aside : out;
    aside.Resize(out->dims());
    context.Alloc(target, type);
    call.outputs.push_back(value_of(*target, type));
    Device &device = nnadapter_paddle::device(context.GetPlace().GetDeviceId());
    auto *stream = reinterpret_cast<Stream *>(context.stream());
    if (!compute(device, stream, call)) return false;
    if (in_place) copy_within(device, stream, context.Alloc(out, type), aside.data(), call.outputs.front().bytes);
    return true;
}

}  // namespace nnadapter_paddle
