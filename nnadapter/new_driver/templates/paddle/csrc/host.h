/* Fallback for operations that the device refuses: Paddle's CPU kernel on host copies. */
#ifndef NNADAPTER_PADDLE_HOST_H
#define NNADAPTER_PADDLE_HOST_H

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/phi/core/tensor_utils.h"

namespace nnadapter_paddle {

class HostCopies { /* kernel arguments for the CPU: tensors are copied, others are passed unchanged */
   public:
    explicit HostCopies(const phi::CustomContext &context) : context_(context) {}

    const phi::DenseTensor &of(const phi::DenseTensor &input) {
        tensors_.emplace_back();
        phi::Copy(context_, input, phi::CPUPlace(), true, &tensors_.back());
        return tensors_.back();
    }

    std::vector<const phi::DenseTensor *> of(const std::vector<const phi::DenseTensor *> &inputs) {
        std::vector<const phi::DenseTensor *> copies;
        for (const phi::DenseTensor *input : inputs) copies.push_back(&of(*input));
        return copies;
    }

    phi::DenseTensor *of(phi::DenseTensor *output) {
        if (!output) return nullptr;
        tensors_.emplace_back();
        tensors_.back().set_meta(output->meta());
        outputs_.emplace_back(output, &tensors_.back());
        return &tensors_.back();
    }

    template <typename Attribute>
    const Attribute &of(const Attribute &attribute) {
        return attribute;
    }

    void bring_back() {
        for (const auto &[output, copy] : outputs_) {
            output->Resize(copy->dims());
            context_.Alloc(output, copy->dtype());
            phi::Copy(context_, *copy, context_.GetPlace(), true, output);
        }
    }

   private:
    const phi::CustomContext &context_;
    std::deque<phi::DenseTensor> tensors_;
    std::vector<std::pair<phi::DenseTensor *, phi::DenseTensor *>> outputs_;
};

/* Calls the CPU kernel of a name and data type; raises if there is none. `Arguments` is the kernel's signature. */
template <typename... Arguments>
void compute_on_host(const char *kernel, phi::DataType type, const phi::CustomContext &context,
                     Arguments... arguments) {
    const phi::KernelKey key(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, type);
    const phi::Kernel &selected = phi::KernelFactory::Instance().SelectKernel(kernel, key);
    if (!selected.IsValid())
        raise(NNADAPTER_FAILED, "neither device '" NNADAPTER_PADDLE_DEVICE "' nor Paddle's CPU computes '" +
                                    std::string(kernel) + "' of " + phi::DataTypeToString(type) +
                                    "; set GLOG_v=1 to see refusals, or cast the tensor to another type");
    auto *function = selected. GetVariadicKernelFn<void (*)(const phi::DeviceContext &, Arguments...)>();
    HostCopies copies(context);
    function(*phi::DeviceContextPool::Instance().Get(phi::CPUPlace()), copies.of(arguments)...);
    copies.bring_back();
}

}  // namespace nnadapter_paddle
#endif
