/* What goes wrong, as exceptions of Paddle with the driver's own sentence in them. */
#ifndef NNADAPTER_PADDLE_ERRORS_H
#define NNADAPTER_PADDLE_ERRORS_H

#include <string>

#include "nnadapter_driver.h"

namespace nnadapter_paddle {

/* Raises the exception of Paddle that says what `status` says. */
[[noreturn]] void raise(NNAdapterStatus status, const std::string &sentence);

/* The buffer that a call may write its sentence into. */
class Sentence {
   public:
    Sentence() : error_{sizeof error_, NNADAPTER_VERSION, text_, sizeof text_} {}
    NNAdapterError *buffer() { return &error_; }
    /* Raises if the call of device `id` did not go well. */
    void check(NNAdapterStatus status, const char *call, int id) const;

   private:
    char text_[1024] = "";
    NNAdapterError error_;
};

}  // namespace nnadapter_paddle
#endif
