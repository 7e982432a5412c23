/* Paddle's kernels by operations of the driver. */
#ifndef NNADAPTER_PADDLE_KERNELS_H
#define NNADAPTER_PADDLE_KERNELS_H

namespace nnadapter_paddle {

/* Registers a kernel per row of the tables of `kernels.cc`, for every data type that Paddle's own CPU kernel takes:
 * what the device refuses, that one computes. */
void register_kernels();

}  // namespace nnadapter_paddle
#endif
