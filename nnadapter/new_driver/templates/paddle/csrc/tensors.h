/* Paddle's tensors as values of an operation. */
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

/* Data type of the adapter IR; 0 if there is none. */
int32_t data_type_of(phi::DataType type);
/* Its name in the adapter IR. */
const char *name_of(phi::DataType type);
std::vector<int64_t> dimensions_of(const Tensor &tensor);
/* Nonnegative axis for Paddle's, which may be negative. */
int64_t axis_of(int64_t axis, const Tensor &tensor);

/* Computes the operation on the device into `out`, of `type`. Returns false if the device refuses it. */
bool compute_on_device(const Context &context, const char *operation, std::vector<Attribute> attributes,
                       const Inputs &inputs, uint32_t absent, phi::DataType type, Tensor *out);

}  // namespace nnadapter_paddle
#endif
