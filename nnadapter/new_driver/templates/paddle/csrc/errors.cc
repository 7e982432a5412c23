#include "errors.h"

#include "paddle/phi/core/enforce.h"
#include "paddle/phi/core/memory/allocation/allocator.h"

namespace nnadapter_paddle {

void raise(NNAdapterStatus status, const std::string &sentence) {
    const char *text = sentence.c_str();
    switch (status) {
        case NNADAPTER_INVALID_ARGUMENT:
            PADDLE_THROW(common::errors::InvalidArgument("%s", text));
        case NNADAPTER_OUT_OF_MEMORY:
            /* Paddle frees its cached memory and retries. */
            PADDLE_THROW_BAD_ALLOC(common::errors::ResourceExhausted("%s", text));
        case NNADAPTER_DEVICE_UNAVAILABLE:
        case NNADAPTER_DEVICE_LOST:
        case NNADAPTER_TRANSIENT:
            PADDLE_THROW(common::errors::Unavailable("%s", text));
        case NNADAPTER_DEADLINE_EXCEEDED:
            PADDLE_THROW(common::errors::ExecutionTimeout("%s", text));
        default:
            PADDLE_THROW(common::errors::External("%s", text));
    }
}

void Sentence::check(NNAdapterStatus status, const char *call, int id) const {
    if (status == NNADAPTER_OK) return;
    const std::string said = *text_ ? text_ : "it failed without a reason";
    raise(status, "device '" NNADAPTER_PADDLE_DEVICE ":" + std::to_string(id) + "', call '" + call + "': " + said);
}

}  // namespace nnadapter_paddle
