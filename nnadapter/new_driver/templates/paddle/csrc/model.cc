#include "model.h"


namespace nnadapter_paddle {
namespace {

template <typename Structure>
Structure headed() {
    Structure structure{};
    structure.size = sizeof structure;
    structure.version = NNADAPTER_VERSION;
    return structure;
}

template <typename Number>
void put(std::string &form, Number number) {
    form.append(reinterpret_cast<const char *>(&number), sizeof number);
}

template <typename Number>
void put_all(std::string &form, const std::vector<Number> &numbers) {
    put(form, numbers.size());
    for (const Number number : numbers) put(form, number);
}

void put_text(std::string &form, const std::string &text) {
    put(form, text.size());
    form += text;
}

void put_values(std::string &form, const std::vector<Value> &values) {
    put(form, values.size());
    for (const Value &value : values) {
        put(form, value.data_type);
        put_all(form, value.dimensions);
    }
}

}  // namespace

Attribute boolean(const char *name, bool value) { return {name, NNADAPTER_KIND_BOOL, value, 0, "", {}, {}}; }
Attribute integer(const char *name, int64_t value) { return {name, NNADAPTER_KIND_INT, value, 0, "", {}, {}}; }
Attribute real(const char *name, double value) { return {name, NNADAPTER_KIND_FLOAT, 0, value, "", {}, {}}; }
Attribute text(const char *name, std::string value) {
    return {name, NNADAPTER_KIND_STRING, 0, 0, std::move(value), {}, {}};
}
Attribute integers(const char *name, std::vector<int64_t> values) {
    return {name, NNADAPTER_KIND_INTS, 0, 0, "", std::move(values), {}};
}
Attribute reals(const char *name, std::vector<double> values) {
    return {name, NNADAPTER_KIND_FLOATS, 0, 0, "", {}, std::move(values)};
}

std::vector<Attribute> unfused() { return {text("fuse_code", "none"), reals("fuse_parameters", {})}; }

std::string form_of(const Operation &operation) {
    std::string form;
    put_text(form, operation.type);
    for (const Attribute &attribute : operation.attributes) {
        put_text(form, attribute.name);
        put(form, attribute.integer);
        put(form, attribute.real);
        put_text(form, attribute.text);
        put_all(form, attribute.integers);
        put_all(form, attribute.reals);
    }
    put_values(form, operation.inputs);
    put(form, operation.absent);
    put_values(form, operation.outputs);
    return form;
}

Model::Model(const Operation &operation) : operation_(operation) {
    for (size_t i = 0; i < operation_.inputs.size(); i++) {
        inputs_.push_back(static_cast<int32_t>(operand_list_.size()));
        add_operand(operation_.inputs[i], "input_" + std::to_string(i), NNADAPTER_MODEL_INPUT);
    }
    operation_inputs_ = inputs_;
    operation_inputs_.insert(operation_inputs_.end(), operation_.absent, NNADAPTER_ABSENT);
    for (size_t i = 0; i < operation_.outputs.size(); i++) {
        outputs_.push_back(static_cast<int32_t>(operand_list_.size()));
        add_operand(operation_.outputs[i], "output_" + std::to_string(i), NNADAPTER_MODEL_OUTPUT);
    }
    for (const Attribute &attribute : operation_.attributes) add_attribute(attribute);
    only_ = headed<NNAdapterOperation>();
    only_.type = operation_.type.c_str();
    only_.input_count = static_cast<uint32_t>(operation_inputs_.size());
    only_.output_count = static_cast<uint32_t>(outputs_.size());
    only_.attribute_count = static_cast<uint32_t>(attribute_list_.size());
    only_.inputs = operation_inputs_.data();
    only_.outputs = outputs_.data();
    only_.attributes = attribute_list_.data();
    operation_list_[0] = &only_;
    model_ = headed<NNAdapterModel>();
    model_.operand_count = static_cast<uint32_t>(operand_list_.size());
    model_.operation_count = 1;
    model_.input_count = static_cast<uint32_t>(inputs_.size());
    model_.output_count = static_cast<uint32_t>(outputs_.size());
    model_.operands = operand_list_.data();
    model_.operations = operation_list_;
    model_.inputs = inputs_.data();
    model_.outputs = outputs_.data();
}

void Model::add_operand(const Value &value, const std::string &name, int32_t lifetime) {
    names_.push_back(name);
    operands_.push_back(headed<NNAdapterOperand>());
    NNAdapterOperand &operand = operands_.back();
    operand.name = names_.back().c_str();
    operand.data_type = value.data_type;
    operand.layout = NNADAPTER_NCHW;
    operand.lifetime = lifetime;
    operand.rank = static_cast<uint32_t>(value.dimensions.size());
    operand.dimensions = value.dimensions.empty() ? nullptr : value.dimensions.data();
    operand.bytes = value.bytes;
    operand_list_.push_back(&operand);
}

void Model::add_attribute(const Attribute &attribute) {
    attributes_.push_back(headed<NNAdapterAttribute>());
    NNAdapterAttribute &entry = attributes_.back();
    entry.name = attribute.name.c_str();
    entry.kind = attribute.kind;
    entry.count = 1;
    switch (attribute.kind) {
        case NNADAPTER_KIND_BOOL:
            entry.value.boolean = attribute.integer != 0;
            break;
        case NNADAPTER_KIND_INT:
            entry.value.integer = attribute.integer;
            break;
        case NNADAPTER_KIND_FLOAT:
            entry.value.real = attribute.real;
            break;
        case NNADAPTER_KIND_STRING:
            entry.value.string = attribute.text.c_str();
            break;
        case NNADAPTER_KIND_INTS:
            entry.count = static_cast<uint32_t>(attribute.integers.size());
            entry.value.integers = attribute.integers.data();
            break;
        default:
            entry.count = static_cast<uint32_t>(attribute.reals.size());
            entry.value.reals = attribute.reals.data();
    }
    attribute_list_.push_back(&entry);
}

}  // namespace nnadapter_paddle
