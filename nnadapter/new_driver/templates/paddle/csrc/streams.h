/* Streams and events: the driver's, with what has to live until their work is done. */
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

/* The driver's stream; null where it has none: what is called is done on return. */
NNAdapterStream *handle_of(const Stream *stream);
/* Give the stream a piece of work; `held` lives until it is done. */
void enqueue(Device &device, Stream *stream, const char *call, std::shared_ptr<void> held, const Call &work);
/* Wait for whatever a copy by the host must come behind. */
void settle(Device &device, Stream *stream);
/* The same where nothing may be raised: what went wrong is raised by the next that waits for the device. */
void wait_quietly(Device &device, Stream *stream) noexcept;

}  // namespace nnadapter_paddle
#endif
