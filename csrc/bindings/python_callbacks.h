// Python objects as TokenConstraint and LogitsProcessor.
//
// The engine calls and destroys them on threads that do not hold the GIL: it is taken for each call and for letting go
// of the object. A Python exception becomes an Error with its type and message, which ends the request.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "eagle31rt/logits_processor.h"
#include "eagle31rt/token_constraint.h"

namespace eagle31rt {

// `object` has the methods of TokenConstraint; fill_mask takes a writable uint32 array. None gives null. Throws
// Error(kInvalidArgument) if a method is missing.
std::shared_ptr<TokenConstraint> make_python_constraint(const pybind11::object& object);

// `callable(prompt_token_ids, output_token_ids, logits)`: lists of ids and a writable float32 array, which it changes
// in place or replaces by what it returns. Throws Error(kInvalidArgument) if it is not callable.
std::shared_ptr<LogitsProcessor> make_python_processor(const pybind11::object& callable);

// What they were made of; None for those of C++.
pybind11::object python_object_of(const TokenConstraint* constraint);
pybind11::object python_object_of(const LogitsProcessor* processor);

}  // namespace eagle31rt
