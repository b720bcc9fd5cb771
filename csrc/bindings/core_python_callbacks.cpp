#include <pybind11/numpy.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "bindings/python_callbacks.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

bool interpreter_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// A reference that may be dropped by any thread. While the interpreter ends, the GIL cannot be taken: then the object
// is left to the end of the process.
class HeldObject {
 public:
  explicit HeldObject(py::object object) : object_(std::move(object)) {}
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;
  ~HeldObject() {
    if (interpreter_is_ending()) {
      object_.release();
      return;
    }
    const py::gil_scoped_acquire acquire;
    object_ = py::object();
  }
  const py::object& get() const { return object_; }

 private:
  py::object object_;
};

std::string describe(const py::error_already_set& error) {
  std::string name = "an exception", message;
  try {
    name = py::str(error.type().attr("__name__"));
    message = py::str(error.value());
  } catch (const py::error_already_set&) {  // its __str__ raises, too
  }
  return message.empty() ? name : name + ": " + message;
}

// Runs `call` under the GIL. The engine puts the name of the parameter before the message.
template <typename Call>
auto call_python(const char* method, const Call& call) {
  const py::gil_scoped_acquire acquire;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    const std::string message = std::string(method) + " raised " + describe(error);
    // Ctrl-C is for whoever waits for the step, who sees it when the step is done. Last, since any call of Python may
    // raise it.
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    throw Error(ErrorCode::kInvalidArgument, message);
  } catch (const py::cast_error&) {
    throw Error(ErrorCode::kInvalidArgument, std::string(method) + " returned a value of the wrong type");
  }
}

// An array of its own for each object: a view of the engine's memory would be dangling if Python kept it.
template <typename T>
class ArrayArgument {
 public:
  // Call under the GIL. The array is used again unless Python still has it.
  py::array_t<T> get(size_t size) {
    const bool is_free = held_ && array().ref_count() == 1 && static_cast<size_t>(array().size()) == size;
    if (!is_free) held_ = std::make_unique<HeldObject>(py::array_t<T>(static_cast<py::ssize_t>(size)));
    return array();
  }

 private:
  py::array_t<T> array() const { return py::reinterpret_borrow<py::array_t<T>>(held_->get()); }
  std::unique_ptr<HeldObject> held_;
};

class PythonConstraint : public TokenConstraint {
 public:
  explicit PythonConstraint(py::object object) : object_(std::move(object)) {
    for (const char* method : {"fill_mask", "accept", "roll_back", "is_finished"}) {
      E31_CHECK(py::hasattr(object_.get(), method), kInvalidArgument, "constraint has no method ", method);
    }
  }

  void fill_mask(std::span<uint32_t> allowed) override {
    call_python("fill_mask", [&] {
      py::array_t<uint32_t> mask = mask_.get(allowed.size());
      std::fill_n(mask.mutable_data(), allowed.size(), 0u);
      object_.get().attr("fill_mask")(mask);
      std::copy_n(mask.data(), allowed.size(), allowed.data());
    });
  }
  bool accept(int32_t token_id) override {
    return call_python("accept", [&] { return object_.get().attr("accept")(token_id).template cast<bool>(); });
  }
  void roll_back(int32_t num_tokens) override {
    call_python("roll_back", [&] { object_.get().attr("roll_back")(num_tokens); });
  }
  bool is_finished() const override {
    return call_python("is_finished", [&] { return object_.get().attr("is_finished")().template cast<bool>(); });
  }
  py::object object() const { return object_.get(); }

 private:
  HeldObject object_;
  ArrayArgument<uint32_t> mask_;
};

py::list id_list(std::span<const int32_t> ids) {
  py::list list(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) list[i] = py::int_(ids[i]);
  return list;
}

class PythonProcessor : public LogitsProcessor {
 public:
  explicit PythonProcessor(py::object callable) : callable_(std::move(callable)) {
    E31_CHECK(PyCallable_Check(callable_.get().ptr()), kInvalidArgument, "logits_processors must be callables");
  }

  void apply(std::span<const int32_t> prompt, std::span<const int32_t> output, std::span<float> logits) override {
    call_python("it", [&] {
      py::array_t<float> values = logits_.get(logits.size());
      std::copy(logits.begin(), logits.end(), values.mutable_data());
      const py::object result = callable_.get()(id_list(prompt), id_list(output), values);
      read_back(result.is_none() ? py::object(values) : result, logits);
    });
  }
  py::object object() const { return callable_.get(); }

 private:
  static void read_back(const py::object& result, std::span<float> logits) {
    using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
    const Floats values = Floats::ensure(result);
    if (!values) {
      PyErr_Clear();
      throw Error(ErrorCode::kInvalidArgument, "it must return None or its logits");
    }
    E31_CHECK(values.ndim() == 1 && static_cast<size_t>(values.size()) == logits.size(), kInvalidArgument,
              "it returned ", values.size(), " values in ", values.ndim(), " dimensions for ", logits.size(),
              " logits");
    std::copy_n(values.data(), logits.size(), logits.data());
  }

  HeldObject callable_;
  ArrayArgument<float> logits_;
};

}  // namespace

std::shared_ptr<TokenConstraint> make_python_constraint(const py::object& object) {
  if (object.is_none()) return nullptr;
  return std::make_shared<PythonConstraint>(object);
}

std::shared_ptr<LogitsProcessor> make_python_processor(const py::object& callable) {
  return std::make_shared<PythonProcessor>(callable);
}

py::object python_object_of(const TokenConstraint* constraint) {
  const auto* python = dynamic_cast<const PythonConstraint*>(constraint);
  return python == nullptr ? py::none() : python->object();
}

py::object python_object_of(const LogitsProcessor* processor) {
  const auto* python = dynamic_cast<const PythonProcessor*>(processor);
  return python == nullptr ? py::none() : python->object();
}

}  // namespace eagle31rt
