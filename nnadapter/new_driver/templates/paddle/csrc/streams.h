/* Streams and events of the driver, with the objects that their pending work uses. */
#ifndef NNADAPTER_PADDLE_STREAMS_H
#define NNADAPTER_PADDLE_STREAMS_H

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "driver.h"

namespace nnadapter_paddle {

struct Stream;
struct Event;

using Call = std::function<NNAdapterStatus(NNAdapterStream *, NNAdapterError *)>;

Stream *create_stream(Device &device);
void destroy_stream(Device &device, Stream *stream) noexcept;
Event *create_event(Device &device);
void destroy_event(Event *event) noexcept;
void record(Device &device, Event *event, Stream *stream);
void wait(Device &device, Stream *stream, Event *event);
void synchronize(Device &device);
void synchronize(Device &device, Stream *stream);
void synchronize(Device &device, Event *event);
bool happened(Device &device, Event *event);

/* Stream of the driver; null if it has none: calls are then synchronous. */
NNAdapterStream *handle_of(const Stream *stream);
/* Enqueue work; `held` stays alive until it is done. */
void enqueue(Device &device, Stream *stream, const char *call, std::shared_ptr<void> held, const Call &work);
/* Wait for work that must precede a copy by the host. */
void settle(Device &device, Stream *stream);
/* The same without raising: the next wait for the device raises the error. */
void wait_quietly(Device &device, Stream *stream) noexcept;

}  // namespace nnadapter_paddle
#endif
