/* Programs of one operation: compiled once per signature, in an LRU cache. */
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "errors.h"
#include "memory.h"
#include "model.h"

namespace nnadapter_paddle {
namespace {

const size_t MOST_PROGRAMS = 1024; /* per device */

NNAdapterControl unbounded() {
    NNAdapterControl control{};
    control.size = sizeof control;
    control.version = NNADAPTER_VERSION;
    return control;
}
const NNAdapterControl CONTROL = unbounded();

/* Logs if GLOG_v is at least 1, as Paddle does. */
void tell(const std::string &sentence) {
    static const char *level = std::getenv("GLOG_v");
    if (level && std::atoi(level) > 0) std::fprintf(stderr, "%s %s\n", NNADAPTER_PADDLE_DEVICE, sentence.c_str());
}

/* For example "ADD of float32[2, 3], float32[3]". */
std::string words_of(const Operation &operation) {
    std::string words = operation.type + " of ";
    for (const Value &value : operation.inputs) {
        words += (&value == &operation.inputs.front() ? "" : ", ") + std::string(value.type_name) + "[";
        for (size_t axis = 0; axis < value.dimensions.size(); axis++)
            words += (axis ? ", " : "") + std::to_string(value.dimensions[axis]);
        words += "]";
    }
    return words;
}

class Program { /* program with a pool of executions */
   public:
    Program(Device &device, const Operation &operation)
        : device_(device), operation_(words_of(operation)), model_(operation) {}

    ~Program() {
        for (NNAdapterExecution *execution : free_) driver().destroy_execution(execution);
        if (handle_) driver().destroy_program(handle_);
    }

    /* Compiles the operation; returns false if the device refuses it. */
    bool compile() {
        const std::lock_guard<std::mutex> guard(device_.lock);
        const std::string refusal = refused();
        if (!refusal.empty()) {
            tell("refuses " + operation_ + ", which Paddle's CPU kernel computes: " + refusal);
            return false;
        }
        tell("computes " + operation_);
        NNAdapterCompileRequest request{sizeof request, NNADAPTER_VERSION, model_.get(), &CONTROL};
        Sentence sentence;
        NNAdapterProgram *program = nullptr;
        sentence.check(driver().compile(device_.context, &request, &program, sentence.buffer()), "compile", device_.id);
        handle_ = program;
        return true;
    }

    NNAdapterExecution *take() {
        const std::lock_guard<std::mutex> guard(lock_);
        if (!free_.empty()) {
            NNAdapterExecution *execution = free_.back();
            free_.pop_back();
            return execution;
        }
        NNAdapterExecution *execution = nullptr;
        Sentence sentence;
        sentence.check(driver().create_execution(handle_, &execution, sentence.buffer()), "create_execution",
                       device_.id);
        return execution;
    }

    void give_back(NNAdapterExecution *execution) {
        const std::lock_guard<std::mutex> guard(lock_);
        free_.push_back(execution);
    }

   private:
    /* Reason of a refusal; empty if the device supports the operation. */
    std::string refused() {
        char detail[1024] = "";
        NNAdapterVerdict verdict{sizeof verdict, NNADAPTER_VERSION, 0, 0, detail, sizeof detail};
        NNAdapterVerdict *const verdicts[] = {&verdict};
        Sentence sentence;
        sentence.check(driver().supported(device_.context, model_.get(), verdicts, sentence.buffer()), "supported",
                       device_.id);
        if (verdict.supported && NNADAPTER_PADDLE_HAS(NNAdapterDriver, &driver(), admit)) {
            NNAdapterAdmission admission{sizeof admission, NNADAPTER_VERSION, &verdict, 0};
            sentence.check(driver().admit(device_.context, model_.get(), &admission, sentence.buffer()), "admit",
                           device_.id);
        }
        if (verdict.supported) return "";
        return *detail ? detail : "without a reason";
    }

    Device &device_;
    const std::string operation_; /* for logs */
    const Model model_; /* must outlive the program */
    NNAdapterProgram *handle_ = nullptr;
    std::mutex lock_; /* serializes the creation of executions */
    std::vector<NNAdapterExecution *> free_;
};

using ProgramPointer = std::shared_ptr<Program>; /* null if the device refuses it */

class Programs { /* LRU cache of one device */
   public:
    ProgramPointer find(Device &device, const Operation &operation) {
        const std::string form = form_of(operation);
        const std::lock_guard<std::mutex> guard(lock_);
        const auto entry = by_form_.find(form);
        if (entry != by_form_.end()) {
            order_.splice(order_.begin(), order_, entry->second);
            return entry->second->second;
        }
        auto program = std::make_shared<Program>(device, operation);
        if (!program->compile()) program = nullptr;
        order_.emplace_front(form, program);
        by_form_.emplace(form, order_.begin());
        if (order_.size() > MOST_PROGRAMS) {
            by_form_.erase(order_.back().first);
            order_.pop_back();
        }
        return program;
    }

   private:
    std::mutex lock_;
    std::list<std::pair<std::string, ProgramPointer>> order_;
    std::unordered_map<std::string, std::list<std::pair<std::string, ProgramPointer>>::iterator> by_form_;
};

Programs &programs_of(const Device &device) {
    static std::mutex lock;
    static auto &all = *new std::unordered_map<int, Programs>; /* never destroyed: drivers may be gone first */
    const std::lock_guard<std::mutex> guard(lock);
    return all[device.id];
}

NNAdapterTensor tensor_of(const Value &value) {
    NNAdapterTensor tensor{};
    tensor.size = sizeof tensor;
    tensor.version = NNADAPTER_VERSION;
    tensor.data_type = value.data_type;
    tensor.rank = static_cast<uint32_t>(value.dimensions.size());
    tensor.dimensions = value.dimensions.data();
    tensor.bytes = value.bytes;
    const Spot spot = spot_of(value.address);
    tensor.memory = spot.memory;
    tensor.memory_offset = spot.offset;
    tensor.data = spot.memory ? nullptr : value.address;
    return tensor;
}

/* Computation with all data that its request points to. */
struct Computation {
    Computation(ProgramPointer of, const Operation &operation) : program(std::move(of)), values(operation) {
        for (const Value &value : values.inputs) tensors.push_back(tensor_of(value));
        for (const Value &value : values.outputs) tensors.push_back(tensor_of(value));
        for (const NNAdapterTensor &tensor : tensors) pointers.push_back(&tensor);
        request.size = sizeof request;
        request.version = NNADAPTER_VERSION;
        request.input_count = static_cast<uint32_t>(values.inputs.size());
        request.output_count = static_cast<uint32_t>(values.outputs.size());
        request.inputs = pointers.data();
        request.outputs = pointers.data() + request.input_count;
        request.control = &CONTROL;
        execution = program->take();
    }
    ~Computation() { program->give_back(execution); }
    Computation(const Computation &) = delete;
    Computation &operator=(const Computation &) = delete;

    ProgramPointer program;
    Operation values;
    std::vector<NNAdapterTensor> tensors;
    std::vector<const NNAdapterTensor *> pointers;
    NNAdapterComputeRequest request{};
    NNAdapterExecution *execution;
};

}  // namespace

bool compute(Device &device, Stream *stream, const Operation &operation) {
    ProgramPointer program = programs_of(device).find(device, operation);
    if (!program) return false;
    auto computation = std::make_shared<Computation>(std::move(program), operation);
    std::unique_lock<std::mutex> serial(device.serial, std::defer_lock);
    if (device.capability.threading == NNADAPTER_SERIAL) {
        serial.lock();
        settle(device, stream);
        stream = nullptr;
    }
    enqueue(device, stream, "compute", computation, [&](NNAdapterStream *handle, NNAdapterError *error) {
        computation->request.stream = handle;
        return driver().compute(computation->execution, &computation->request, error);
    });
    return true;
}

}  // namespace nnadapter_paddle
