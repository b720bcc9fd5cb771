#include "bindings/testing_device.h"

#include <pybind11/pybind11.h>

#include <memory>

#include "base/check.h"
#include "bindings/testing.h"
#include "ops/cuda_backend.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

class SharedMemoryResource : public std::pmr::memory_resource {
 public:
  explicit SharedMemoryResource(Device& device) : device_(device) {}

 private:
  void* do_allocate(size_t num_bytes, size_t) override { return device_.allocate_shared(num_bytes); }
  void do_deallocate(void* memory, size_t, size_t) override { device_.deallocate_shared(memory); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  Device& device_;
};

Device& cuda_device() {
  // Never closed: at exit the driver may be gone before static objects are.
  static Device* device = cuda_backend().open_device(0).release();
  return *device;
}

py::dict cuda_device_info() {
  const DeviceInfo info = cuda_device().info();
  return py::dict(py::arg("name") = info.name, py::arg("compute_capability") = info.compute_capability,
                  py::arg("num_multiprocessors") = info.num_multiprocessors,
                  py::arg("shared_memory_per_block") = info.shared_memory_per_block,
                  py::arg("total_memory") = info.total_memory, py::arg("free_memory") = info.free_memory);
}

}  // namespace

Device* testing_device(const std::string& mode) {
  if (mode == "cuda") return &cuda_device();
  E31_CHECK(mode == "cpu" || mode == "reference", kInvalidArgument, "mode is \"", mode,
            "\"; give cpu, cuda or reference");
  return nullptr;
}

DeviceMemoryScope::DeviceMemoryScope(Device* device)
    : previous_resource_(std::pmr::get_default_resource()), previous_layouts_(case_layouts()) {
  if (device == nullptr) return;
  static SharedMemoryResource resource(*device);
  std::pmr::set_default_resource(&resource);
  case_layouts() = {WeightLayout::kRowMajor, KeyLayout::kDimsFastest};
}

DeviceMemoryScope::~DeviceMemoryScope() {
  std::pmr::set_default_resource(previous_resource_);
  case_layouts() = previous_layouts_;
}

void bind_testing_device(py::module_& module) { module.def("cuda_device_info", cuda_device_info); }

}  // namespace eagle31rt
