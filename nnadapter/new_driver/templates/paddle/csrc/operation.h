/* One operation of the adapter IR with the tensors that it is to be computed on. */
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
    void *address; /* of the device; inputs are not written to */
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
/* Those of an operation that fuses no activation. */
std::vector<Attribute> unfused();

struct Operation { /* `type` and attributes as the adapter IR has them, all of them, defaults filled in */
    std::string type;
    std::vector<Attribute> attributes;
    std::vector<Value> inputs;
    uint32_t absent = 0; /* optional inputs behind these that are not there */
    std::vector<Value> outputs;
};

/* The operation computed on the stream, by a program that is compiled once per form and kept.
 *
 * False if the device refuses it: nothing was computed then. */
bool compute(Device &device, Stream *stream, const Operation &operation);

}  // namespace nnadapter_paddle
#endif
