/* Operation of the adapter IR with its tensors. */
#ifndef NNADAPTER_PADDLE_OPERATION_H
#define NNADAPTER_PADDLE_OPERATION_H

#include <cstdint>
#include <string>
#include <vector>

#include "driver.h"
#include "streams.h"

namespace nnadapter_paddle {

struct Value {
    int32_t data_type;
    const char *type_name;
    std::vector<int64_t> dimensions;
    void *address; /* on the device; inputs are read only */
    uint64_t bytes;
};

struct Attribute {
    std::string name;
    int32_t kind;
    int64_t integer = 0;
    double real = 0;
    std::string text;
    std::vector<int64_t> integers;
    std::vector<double> reals;
};

Attribute boolean(const char *name, bool value);
Attribute integer(const char *name, int64_t value);
Attribute real(const char *name, double value);
Attribute text(const char *name, std::string value);
Attribute integers(const char *name, std::vector<int64_t> values);
Attribute reals(const char *name, std::vector<double> values);
/* Attributes of an operation without a fused activation. */
std::vector<Attribute> unfused();

struct Operation { /* adapter IR type and all attributes, defaults included */
    std::string type;
    std::vector<Attribute> attributes;
    std::vector<Value> inputs;
    uint32_t absent = 0; /* number of absent optional inputs after these */
    std::vector<Value> outputs;
};

/* Computes the operation on the stream, by a program that is compiled once per signature and cached.
 *
 * Returns false, without an effect, if the device refuses it. */
bool compute(Device &device, Stream *stream, const Operation &operation);

}  // namespace nnadapter_paddle
#endif
