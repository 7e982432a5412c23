/* Tensors of Paddle as values of an operation. */
#ifndef NNADAPTER_PADDLE_TENSORS_H
#define NNADAPTER_PADDLE_TENSORS_H

#include <initializer_list>
#include <vector>

#include "host.h"
#include "operation.h"

namespace nnadapter_paddle {

using Tensor = phi::DenseTensor;
using Context = phi::CustomContext;
using Inputs = std::vector<const Tensor *>;

/* The data type of the adapter IR; 0 if it has none like it. */
int32_t data_type_of(phi::DataType type);
/* Its name there. */
const char *name_of(phi::DataType type);
std::vector<int64_t> dimensions_of(const Tensor &tensor);
/* A last axis as Paddle counts it, counted from the first. */
int64_t axis_of(int64_t axis, const Tensor &tensor);

/* Computes the operation on the device: its result, of `type`, in `out`. False if the device refuses it. */
bool compute_on_device(const Context &context, const char *operation, std::vector<Attribute> attributes,
                       const Inputs &inputs, uint32_t absent, phi::DataType type, Tensor *out);

}  // namespace nnadapter_paddle
#endif
