#include "streams.h"

#include <utility>

#include "errors.h"

namespace nnadapter_paddle {

struct Stream {
    NNAdapterStream *handle = nullptr;
    std::mutex lock; /* serializes calls with the stream */
    std::vector<std::shared_ptr<void>> held;
};

struct Event {
    NNAdapterEvent *handle = nullptr;
    bool recorded = false;
};

namespace {

const size_t MOST_HELD = 256; /* pending work after which the stream is synchronized */

/* Raises an error that happened while memory or a stream was freed, which cannot raise. */
void tell_untold(Device &device) {
    const std::lock_guard<std::mutex> guard(device.untold_lock);
    if (device.untold) std::rethrow_exception(std::exchange(device.untold, nullptr));
}

void synchronize_locked(Device &device, Stream *stream) {
    Sentence sentence;
    const NNAdapterStatus status = stream_functions()->synchronize_stream(stream->handle, sentence.buffer());
    stream->held.clear();
    sentence.check(status, "synchronize_stream", device.id);
    tell_untold(device);
}

}  // namespace

Stream *create_stream(Device &device) {
    auto stream = std::make_unique<Stream>();
    if (stream_functions()) {
        Sentence sentence;
        sentence.check(stream_functions()->create_stream(device.handle, &stream->handle, sentence.buffer()),
                       "create_stream", device.id);
    }
    return stream.release();
}

void destroy_stream(Device &device, Stream *stream) noexcept {
    if (!stream) return;
    wait_quietly(device, stream);
    if (stream->handle) stream_functions()->destroy_stream(stream->handle);
    delete stream;
}

Event *create_event(Device &device) {
    auto event = std::make_unique<Event>();
    if (stream_functions()) {
        Sentence sentence;
        sentence.check(stream_functions()->create_event(device.handle, &event->handle, sentence.buffer()),
                       "create_event", device.id);
    }
    return event.release();
}

void destroy_event(Event *event) noexcept {
    if (!event) return;
    if (event->handle) stream_functions()->destroy_event(event->handle);
    delete event;
}

void record(Device &device, Event *event, Stream *stream) {
    if (!event->handle || !handle_of(stream)) return;
    const std::lock_guard<std::mutex> guard(stream->lock);
    Sentence sentence;
    sentence.check(stream_functions()->record_event(event->handle, stream->handle, sentence.buffer()), "record_event",
                   device.id);
    event->recorded = true;
}

void wait(Device &device, Stream *stream, Event *event) {
    if (!event->handle || !handle_of(stream)) return;
    const std::lock_guard<std::mutex> guard(stream->lock);
    Sentence sentence;
    sentence.check(stream_functions()->wait_event(stream->handle, event->handle, sentence.buffer()), "wait_event",
                   device.id);
}

void synchronize(Device &device) {
    if (!stream_functions()) return;
    Sentence sentence;
    sentence.check(stream_functions()->synchronize_device(device.handle, sentence.buffer()), "synchronize_device",
                   device.id);
    tell_untold(device);
}

void synchronize(Device &device, Stream *stream) {
    if (!handle_of(stream)) return;
    const std::lock_guard<std::mutex> guard(stream->lock);
    synchronize_locked(device, stream);
}

void synchronize(Device &device, Event *event) {
    if (!event->handle || !event->recorded) return;
    if (!NNADAPTER_PADDLE_HAS(NNAdapterStreamFunctions, stream_functions(), synchronize_event))
        return synchronize(device); /* the stream may be destroyed */
    Sentence sentence;
    sentence.check(stream_functions()->synchronize_event(event->handle, sentence.buffer()), "synchronize_event",
                   device.id);
}

bool happened(Device &device, Event *event) {
    if (!event->handle || !event->recorded) return true;
    if (NNADAPTER_PADDLE_HAS(NNAdapterStreamFunctions, stream_functions(), query_event))
        return stream_functions()->query_event(event->handle);
    synchronize(device, event); /* without a query, wait: otherwise polling would never end */
    return true;
}

NNAdapterStream *handle_of(const Stream *stream) { return stream ? stream->handle : nullptr; }

void enqueue(Device &device, Stream *stream, const char *call, std::shared_ptr<void> held, const Call &work) {
    Sentence sentence;
    if (!handle_of(stream)) return sentence.check(work(nullptr, sentence.buffer()), call, device.id);
    const std::lock_guard<std::mutex> guard(stream->lock);
    const NNAdapterStatus status = work(stream->handle, sentence.buffer());
    if (status == NNADAPTER_OK && held) stream->held.push_back(std::move(held));
    sentence.check(status, call, device.id);
    if (stream->held.size() >= MOST_HELD) synchronize_locked(device, stream);
}

void wait_quietly(Device &device, Stream *stream) noexcept {
    try {
        settle(device, stream);
    } catch (...) {
        const std::lock_guard<std::mutex> guard(device.untold_lock);
        device.untold = std::current_exception();
    }
}

void settle(Device &device, Stream *stream) {
    if (stream)
        synchronize(device, stream);
    else
        synchronize(device);
}

}  // namespace nnadapter_paddle
