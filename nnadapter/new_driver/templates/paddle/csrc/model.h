/* Model of one operation for the C interface. */
#ifndef NNADAPTER_PADDLE_MODEL_H
#define NNADAPTER_PADDLE_MODEL_H

#include <deque>
#include <string>
#include <vector>

#include "operation.h"

namespace nnadapter_paddle {

class Model { /* not copyable: its parts point to each other */
   public:
    explicit Model(const Operation &operation);
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    const NNAdapterModel *get() const { return &model_; }

   private:
    void add_operand(const Value &value, const std::string &name, int32_t lifetime);
    void add_attribute(const Attribute &attribute);

    Operation operation_; /* without addresses; the members below point into it */
    std::deque<std::string> names_;
    std::deque<NNAdapterOperand> operands_;
    std::deque<NNAdapterAttribute> attributes_;
    std::vector<const NNAdapterOperand *> operand_list_;
    std::vector<const NNAdapterAttribute *> attribute_list_;
    std::vector<int32_t> inputs_, operation_inputs_, outputs_;
    NNAdapterOperation only_{};
    const NNAdapterOperation *operation_list_[1];
    NNAdapterModel model_{};
};

/* Cache key: equal for operations that can share a program. */
std::string form_of(const Operation &operation);

}  // namespace nnadapter_paddle
#endif
