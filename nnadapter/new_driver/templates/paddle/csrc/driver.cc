#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "errors.h"

namespace nnadapter_paddle {
namespace {

const char NAME[] = NNADAPTER_PADDLE_DEVICE;
const char LIBRARY[] = NNADAPTER_PADDLE_LIBRARY; /* relative to the parent of this plug-in's folder */

std::string folder_of(const std::string &path) { return path.substr(0, path.find_last_of('/')); }

/* Paths of the library: nnadapter's driver folders first, then the installed package. */
std::vector<std::string> candidates() {
    std::vector<std::string> paths;
    if (const char *folders = std::getenv("NNADAPTER_DRIVER_PATH")) {
        std::istringstream folder_list(folders);
        for (std::string folder; std::getline(folder_list, folder, ':');)
            if (!folder.empty()) paths.push_back(folder + "/nnadapter_" + NAME + ".so");
    }
    Dl_info here;
    if (dladdr(reinterpret_cast<const void *>(&device_count), &here) && here.dli_fname)
        paths.push_back(folder_of(folder_of(here.dli_fname)) + "/" + LIBRARY);
    return paths;
}

bool is_whole(const NNAdapterDriver &table) {
    return NNADAPTER_HAS(NNAdapterDriver, &table, compute) && table.open_device && table.close_device &&
           table.create_context && table.destroy_context && table.supported && table.compile &&
           table.destroy_program && table.create_execution && table.destroy_execution && table.compute;
}

const NNAdapterDriver &load() {
    std::string looked;
    for (const std::string &path : candidates()) {
        looked += (looked.empty() ? "" : ", ") + path;
        if (access(path.c_str(), F_OK) != 0) continue;
        void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library)
            raise(NNADAPTER_DEVICE_UNAVAILABLE, "the driver of device '" + std::string(NAME) +
                                                    "' cannot be loaded: " + dlerror() + "; install its package again");
        auto entry = reinterpret_cast<const NNAdapterDriver *(*)(uint32_t)>(dlsym(library, "nnadapter_driver"));
        const NNAdapterDriver *table = entry ? entry(NNADAPTER_VERSION) : nullptr;
        if (!table || table->version >> 16 != NNADAPTER_VERSION_MAJOR || table->version > NNADAPTER_VERSION)
            raise(NNADAPTER_DEVICE_UNAVAILABLE, path + " is not a driver of version " +
                                                    std::to_string(NNADAPTER_VERSION_MAJOR) +
                                                    " of nnadapter's C interface; install a matching version");
        if (!is_whole(*table))
            raise(NNADAPTER_DEVICE_UNAVAILABLE, path + " lacks required functions; its vendor must add them");
        return *table;
    }
    raise(NNADAPTER_DEVICE_UNAVAILABLE, "the driver of device '" + std::string(NAME) + "' is missing, searched " +
                                            looked + "; install its package, or name the folder of its library in "
                                                     "NNADAPTER_DRIVER_PATH");
}

/* Devices that the driver lists: ids, and reasons of those that are unavailable. */
struct Listed {
    std::vector<std::string> ids;
    std::vector<std::string> reasons;
};

Listed list() {
    Listed listed;
    const NNAdapterDriver &table = driver();
    if (NNADAPTER_PADDLE_HAS(NNAdapterDriver, &table, list_devices)) {
        const NNAdapterDeviceInfo *const *infos = nullptr;
        uint32_t count = 0;
        Sentence sentence;
        sentence.check(table.list_devices(&infos, &count, sentence.buffer()), "list_devices", 0);
        for (uint32_t i = 0; i < count; i++) {
            listed.ids.emplace_back(infos[i]->id ? infos[i]->id : "");
            listed.reasons.emplace_back(infos[i]->available ? "" : infos[i]->reason ? infos[i]->reason : "no reason");
        }
    } else {
        listed.ids.emplace_back("");
        listed.reasons.emplace_back("");
    }
    return listed;
}

const Listed &listed() {
    static const Listed devices = list();
    return devices;
}

/* Options of a context, with default values. */
std::vector<const NNAdapterAttribute *> defaults(const NNAdapterCapability &capability) {
    std::vector<const NNAdapterAttribute *> values;
    for (uint32_t i = 0; i < capability.option_count; i++) values.push_back(capability.options[i]->value);
    return values;
}

bool any_opened = false, forked = false;

void note_fork() { forked = any_opened; }

std::unique_ptr<Device> open(int id) {
    const NNAdapterDriver &table = driver();
    const Listed &devices = listed();
    if (id < 0 || static_cast<size_t>(id) >= devices.ids.size())
        raise(NNADAPTER_INVALID_ARGUMENT, "there is no device '" + std::string(NAME) + ":" + std::to_string(id) +
                                              "'; the driver lists " + std::to_string(devices.ids.size()));
    if (!devices.reasons[id].empty())
        raise(NNADAPTER_DEVICE_UNAVAILABLE, "device '" + std::string(NAME) + ":" + std::to_string(id) +
                                                "' cannot be used: " + devices.reasons[id]);
    auto device = std::make_unique<Device>();
    device->id = id;
    Sentence sentence;
    sentence.check(table.open_device(devices.ids[id].c_str(), &device->handle, sentence.buffer()), "open_device", id);
    device->capability.size = sizeof device->capability;
    device->capability.version = NNADAPTER_VERSION;
    device->capability.threading = NNADAPTER_SERIAL;
    const char *call = "describe_device";
    NNAdapterStatus status = NNADAPTER_OK;
    if (NNADAPTER_PADDLE_HAS(NNAdapterDriver, &table, describe_device))
        status = table.describe_device(device->handle, &device->capability, sentence.buffer());
    if (status == NNADAPTER_OK) {
        call = "create_context";
        const auto options = defaults(device->capability);
        status = table.create_context(device->handle, static_cast<uint32_t>(options.size()), options.data(),
                                      &device->context, sentence.buffer());
    }
    if (status != NNADAPTER_OK) table.close_device(device->handle); /* the next use opens it again */
    sentence.check(status, call, id);
    return device;
}

}  // namespace

const NNAdapterDriver &driver() {
    static const NNAdapterDriver &table = load();
    return table;
}

const NNAdapterMemoryFunctions *memory_functions() {
    return NNADAPTER_PADDLE_HAS(NNAdapterDriver, &driver(), memory) ? driver().memory : nullptr;
}

const NNAdapterStreamFunctions *stream_functions() {
    return NNADAPTER_PADDLE_HAS(NNAdapterDriver, &driver(), streams) ? driver().streams : nullptr;
}

size_t device_count() noexcept {
    try {
        return listed().ids.size();
    } catch (...) {
        return 1;
    }
}

Device &device(int id) {
    if (forked)
        raise(NNADAPTER_DEVICE_UNAVAILABLE,
              "device '" + std::string(NAME) + ":" + std::to_string(id) +
                  "' was opened before this process was forked from another; open it in this process only, start the "
                  "process by 'spawn', or give it tensors of the CPU");
    static std::mutex lock;
    static const int watched = pthread_atfork(nullptr, nullptr, note_fork);
    (void)watched;
    /* Never destroyed: Paddle frees device memory until the process ends. */
    static auto &opened = *new std::map<int, std::unique_ptr<Device>>;
    const std::lock_guard<std::mutex> guard(lock);
    auto entry = opened.find(id);
    if (entry == opened.end()) entry = opened.emplace(id, open(id)).first;
    any_opened = true;
    return *entry->second;
}

bool is_forked() noexcept { return forked; }

}  // namespace nnadapter_paddle
