/* Functions of Paddle's custom runtime, implemented by calls of the driver. */
#include <algorithm>
#include <cstring>

#include "driver.h"
#include "errors.h"
#include "kernels.h"
#include "memory.h"
#include "paddle/phi/backends/device_ext.h"
#include "streams.h"

namespace nnadapter_paddle {
namespace {

thread_local int current = 0;

Device &of(C_Device place) { return device(place->id); }
Stream *of(C_Stream stream) { return reinterpret_cast<Stream *>(stream); }
Event *of(C_Event event) { return reinterpret_cast<Event *>(event); }

/* Waiting and freeing do nothing in a forked process; Paddle calls them at exit. */

C_Status set_device(C_Device place) {
    if (!is_forked()) device(place->id); /* open it now to raise errors early */
    current = place->id;
    return C_SUCCESS;
}

C_Status get_device(C_Device place) {
    place->id = current;
    return C_SUCCESS;
}

C_Status make_stream(C_Device place, C_Stream *stream) {
    *stream = reinterpret_cast<C_Stream>(create_stream(of(place)));
    return C_SUCCESS;
}

C_Status end_stream(C_Device place, C_Stream stream) {
    if (!is_forked()) destroy_stream(of(place), of(stream));
    return C_SUCCESS;
}

C_Status make_event(C_Device place, C_Event *event) {
    *event = reinterpret_cast<C_Event>(create_event(of(place)));
    return C_SUCCESS;
}

C_Status end_event(C_Device, C_Event event) {
    if (!is_forked()) destroy_event(of(event));
    return C_SUCCESS;
}

C_Status record_event(C_Device place, C_Stream stream, C_Event event) {
    record(of(place), of(event), of(stream));
    return C_SUCCESS;
}

C_Status query_event(C_Device place, C_Event event) {
    return happened(of(place), of(event)) ? C_SUCCESS : C_FAILED;
}

C_Status wait_event(C_Device place, C_Stream stream, C_Event event) {
    wait(of(place), of(stream), of(event));
    return C_SUCCESS;
}

C_Status synchronize_device(C_Device place) {
    if (!is_forked()) synchronize(of(place));
    return C_SUCCESS;
}

C_Status synchronize_stream(C_Device place, C_Stream stream) {
    if (!is_forked()) synchronize(of(place), of(stream));
    return C_SUCCESS;
}

C_Status synchronize_event(C_Device place, C_Event event) {
    synchronize(of(place), of(event));
    return C_SUCCESS;
}

C_Status call_back(C_Device place, C_Stream stream, C_Callback callback, void *user) {
    synchronize(of(place), of(stream));
    C_Status status = C_SUCCESS;
    callback(place, stream, user, &status);
    return status;
}

C_Status allocate_memory(C_Device place, void **address, size_t bytes) {
    *address = allocate(of(place), bytes);
    return C_SUCCESS;
}

C_Status release_memory(C_Device place, void *address, size_t) {
    if (!is_forked()) release(of(place), address);
    return C_SUCCESS;
}

C_Status set_memory(C_Device place, void *address, unsigned char value, size_t bytes) {
    fill(of(place), address, value, bytes);
    return C_SUCCESS;
}

C_Status to_device(C_Device place, void *target, const void *source, size_t bytes) {
    copy_in(of(place), nullptr, target, source, bytes);
    return C_SUCCESS;
}

C_Status to_host(C_Device place, void *target, const void *source, size_t bytes) {
    copy_out(of(place), nullptr, target, source, bytes);
    return C_SUCCESS;
}

C_Status on_device(C_Device place, void *target, const void *source, size_t bytes) {
    copy_within(of(place), nullptr, target, source, bytes);
    return C_SUCCESS;
}

C_Status between_devices(C_Device target, C_Device source, void *to, const void *from, size_t bytes) {
    synchronize(of(source));
    return on_device(target, to, from, bytes);
}

C_Status enqueue_to_device(C_Device place, C_Stream stream, void *target, const void *source, size_t bytes) {
    copy_in(of(place), of(stream), target, source, bytes);
    return C_SUCCESS;
}

C_Status enqueue_to_host(C_Device place, C_Stream stream, void *target, const void *source, size_t bytes) {
    copy_out(of(place), of(stream), target, source, bytes);
    return C_SUCCESS;
}

C_Status enqueue_on_device(C_Device place, C_Stream stream, void *target, const void *source, size_t bytes) {
    copy_within(of(place), of(stream), target, source, bytes);
    return C_SUCCESS;
}

C_Status enqueue_between_devices(C_Device target, C_Device source, C_Stream stream, void *to, const void *from,
                                 size_t bytes) {
    synchronize(of(source));
    return enqueue_on_device(target, stream, to, from, bytes);
}

C_Status get_count(size_t *count) {
    *count = device_count();
    return C_SUCCESS;
}

C_Status get_list(size_t *devices) {
    for (size_t i = 0; i < device_count(); i++) devices[i] = i;
    return C_SUCCESS;
}

C_Status get_statistics(C_Device place, size_t *total, size_t *free) {
    const size_t unknown = size_t{1} << 40; /* for drivers without statistics, which report exhaustion by errors */
    *total = *free = of(place).capability.memory_bytes ? of(place).capability.memory_bytes : unknown;
    const auto *memory = memory_functions();
    if (!memory) return C_SUCCESS;
    NNAdapterMemoryStatistics statistics{};
    statistics.size = sizeof statistics;
    statistics.version = NNADAPTER_VERSION;
    Sentence sentence;
    sentence.check(memory->statistics(of(place).handle, &statistics, sentence.buffer()), "statistics", place->id);
    *total = statistics.total_bytes ? statistics.total_bytes : *total;
    *free = *total - std::min<size_t>(*total, statistics.used_bytes);
    return C_SUCCESS;
}

C_Status get_minimum_chunk(C_Device place, size_t *bytes) {
    const auto *memory = memory_functions();
    *bytes = std::max<size_t>(memory ? memory->minimum_chunk(of(place).handle) : 0, 64);
    return C_SUCCESS;
}

C_Status take_nothing_ahead(C_Device, size_t *bytes) { /* no preallocation */
    *bytes = 0;
    return C_SUCCESS;
}

/* True if a listed operation supports this type. */
bool takes(Device &device, int32_t data_type) {
    for (uint32_t i = 0; i < device.capability.operation_count; i++) {
        const NNAdapterOperationSupport &row = *device.capability.operations[i];
        if (std::find(row.data_types, row.data_types + row.data_type_count, data_type) !=
            row.data_types + row.data_type_count)
            return true;
    }
    return false;
}

C_Status takes_float16(C_Device place, bool *supported) {
    *supported = takes(of(place), NNADAPTER_FLOAT16);
    return C_SUCCESS;
}

C_Status takes_bfloat16(C_Device place, bool *supported) {
    *supported = takes(of(place), NNADAPTER_BFLOAT16);
    return C_SUCCESS;
}

C_Status get_version(C_Device, size_t *version) {
    *version = NNADAPTER_VERSION;
    return C_SUCCESS;
}

}  // namespace
}  // namespace nnadapter_paddle

extern "C" __attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams *params) {
    using namespace nnadapter_paddle;
    static char name[] = NNADAPTER_PADDLE_DEVICE;
    static char sub_type[] = "nnadapter";
    PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
    params->device_type = name;
    params->sub_device_type = sub_type;
    C_DeviceInterface &table = *params->interface;
    table.set_device = set_device;
    table.get_device = get_device;
    table.create_stream = make_stream;
    table.destroy_stream = end_stream;
    table.stream_add_callback = call_back;
    table.create_event = make_event;
    table.destroy_event = end_event;
    table.record_event = record_event;
    table.query_event = query_event;
    table.stream_wait_event = wait_event;
    table.synchronize_device = synchronize_device;
    table.synchronize_stream = synchronize_stream;
    table.synchronize_event = synchronize_event;
    table.device_memory_allocate = allocate_memory;
    table.device_memory_deallocate = release_memory;
    table.device_memory_set = set_memory;
    table.memory_copy_h2d = to_device;
    table.memory_copy_d2h = to_host;
    table.memory_copy_d2d = on_device;
    table.memory_copy_p2p = between_devices;
    table.async_memory_copy_h2d = enqueue_to_device;
    table.async_memory_copy_d2h = enqueue_to_host;
    table.async_memory_copy_d2d = enqueue_on_device;
    table.async_memory_copy_p2p = enqueue_between_devices;
    table.get_device_count = get_count;
    table.get_device_list = get_list;
    table.device_memory_stats = get_statistics;
    table.device_min_chunk_size = get_minimum_chunk;
    table.device_extra_padding_size = take_nothing_ahead;
    table.device_init_alloc_size = take_nothing_ahead;
    table.device_realloc_size = take_nothing_ahead;
    table.is_float16_supported = takes_float16;
    table.is_bfloat16_supported = takes_bfloat16;
    table.get_runtime_version = get_version;
    table.get_driver_version = get_version;
    register_kernels();
}
