/* Views: strided tensors in the memory of others. */
#ifndef NNADAPTER_PADDLE_VIEWS_H
#define NNADAPTER_PADDLE_VIEWS_H

#include "tensors.h"

namespace nnadapter_paddle {

/* Paddle's kernel `contiguous`: copies a view into dense memory. */
void contiguous(const Context &context, const Tensor &x, Tensor *out);
/* Paddle's kernel `strided_copy`: copies into a view of `out` at a byte offset. */
void strided_copy(const Context &context, const Tensor &input, const std::vector<int64_t> &dims,
                  const std::vector<int64_t> &out_stride, int64_t offset, Tensor *out);

}  // namespace nnadapter_paddle
#endif
