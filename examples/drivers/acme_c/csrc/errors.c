/* Error messages in buffers of the host; deadlines and cancellation. */
#include "acme.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

NNAdapterStatus acme_fail(NNAdapterError *error, NNAdapterStatus status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, error->capacity, format, arguments);
    va_end(arguments);
    return status;
}

void acme_refuse(NNAdapterVerdict *verdict, int32_t reason, const char *format, ...) {
    verdict->supported = 0;
    verdict->reason = reason;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->detail, verdict->capacity, format, arguments);
    va_end(arguments);
}

double acme_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

NNAdapterStatus acme_go_on(const NNAdapterControl *control, double began, NNAdapterError *error) {
    if (control->cancelled && control->cancelled(control->user))
        return acme_fail(error, NNADAPTER_CANCELLED, "cancelled");
    if (control->deadline_seconds > 0 && acme_now() - began > control->deadline_seconds)
        return acme_fail(error, NNADAPTER_DEADLINE_EXCEEDED, "not done within %g s; allow more time or give less work",
                         control->deadline_seconds);
    return NNADAPTER_OK;
}
