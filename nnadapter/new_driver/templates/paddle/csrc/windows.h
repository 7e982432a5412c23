/* Kernels of convolution and pooling. */
#ifndef NNADAPTER_PADDLE_WINDOWS_H
#define NNADAPTER_PADDLE_WINDOWS_H

#include <string>
#include <vector>

#include "paddle/phi/common/int_array.h"
#include "tensors.h"

namespace nnadapter_paddle {

void conv2d(const Context &context, const Tensor &input, const Tensor &filter, const std::vector<int> &strides,
            const std::vector<int> &paddings, const std::string &algorithm, const std::vector<int> &dilations,
            int groups, const std::string &format, Tensor *out);
void depthwise_conv2d(const Context &context, const Tensor &input, const Tensor &filter,
                      const std::vector<int> &strides, const std::vector<int> &paddings, const std::string &algorithm,
                      int groups, const std::vector<int> &dilations, const std::string &format, Tensor *out);
void pool2d(const Context &context, const Tensor &x, const phi::IntArray &kernel, const std::vector<int64_t> &strides,
            const std::vector<int64_t> &paddings, bool ceil_mode, bool exclusive, const std::string &format,
            const std::string &type, bool global, bool adaptive, const std::string &algorithm, Tensor *out);

}  // namespace nnadapter_paddle
#endif
