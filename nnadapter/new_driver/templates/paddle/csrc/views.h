/* Views: tensors whose elements lie in another one's memory, at strides. */
#ifndef NNADAPTER_PADDLE_VIEWS_H
#define NNADAPTER_PADDLE_VIEWS_H

#include "tensors.h"

namespace nnadapter_paddle {

/* Kernel `contiguous` of Paddle: the elements of a view, without gaps. */
void contiguous(const Context &context, const Tensor &x, Tensor *out);
/* Kernel `strided_copy`: elements into a view of `out`, which begins at `offset` bytes of its memory. */
void strided_copy(const Context &context, const Tensor &input, const std::vector<int64_t> &dims,
                  const std::vector<int64_t> &out_stride, int64_t offset, Tensor *out);

}  // namespace nnadapter_paddle
#endif
