/* Errors of the driver as Paddle's exceptions. */
#ifndef NNADAPTER_PADDLE_ERRORS_H
#define NNADAPTER_PADDLE_ERRORS_H

#include <string>

#include "nnadapter_driver.h"

namespace nnadapter_paddle {

/* Raises Paddle's exception for a status. */
[[noreturn]] void raise(NNAdapterStatus status, const std::string &sentence);

/* Buffer for a call's error message. */
class Sentence {
   public:
    Sentence() : error_{sizeof error_, NNADAPTER_VERSION, text_, sizeof text_} {}
    NNAdapterError *buffer() { return &error_; }
    /* Raises if the call of device `id` failed. */
    void check(NNAdapterStatus status, const char *call, int id) const;

   private:
    char text_[1024] = "";
    NNAdapterError error_;
};

}  // namespace nnadapter_paddle
#endif
