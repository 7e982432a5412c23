/* Paddle's kernels, implemented by operations of the driver. */
#ifndef NNADAPTER_PADDLE_KERNELS_H
#define NNADAPTER_PADDLE_KERNELS_H

namespace nnadapter_paddle {

/* Registers the kernels of `kernels.cc` for every data type of Paddle's CPU kernel, which is the fallback. */
void register_kernels();

}  // namespace nnadapter_paddle
#endif
