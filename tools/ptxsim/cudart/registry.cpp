#include "registry.h"

#include <cxxabi.h>

#include <cstdlib>

namespace cudart {
namespace {

std::string targets(const std::vector<Image>& images) {
  std::string list;
  for (const Image& image : images) {
    list += (list.empty() ? "compute_" : ", compute_") + std::to_string(image.architecture);
    if (image.suffix) list += image.suffix;
  }
  return list;
}

std::string why_no_image(const FatBinary& fat_binary, const DeviceProfile& device) {
  if (!fat_binary.errors.empty()) return fat_binary.errors.front();
  const std::string capability = std::to_string(device.compute_capability());
  if (fat_binary.images.empty()) {
    return "the program holds no PTX" + std::string(fat_binary.has_machine_code ? ", only machine code" : "") +
           ": compile with -gencode arch=compute_" + capability + ",code=compute_" + capability;
  }
  return "the program's PTX is for " + targets(fat_binary.images) + "; the simulated device (" + device.name +
         ") has compute capability " + capability;
}

void load(Binary& binary, const DeviceProfile& device) {
  if (binary.loaded) return;
  binary.loaded = true;
  const FatBinary fat_binary = read_fat_binary(binary.wrapper);
  const Image* image = choose_image(fat_binary.images, device.compute_capability());
  if (!image) {
    binary.load_error = cudaErrorNoKernelImageForDevice;
    binary.load_report = why_no_image(fat_binary, device);
    return;
  }
  try {
    binary.module = ptxsim::Module::parse(image->ptx);
    binary.architecture = image->architecture;
  } catch (const ptxsim::Error& error) {
    binary.load_error = cudaErrorInvalidPtx;
    binary.load_report = describe(error);
  }
}

}  // namespace

std::string demangle(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text ? text : name;
  std::free(text);
  return result;
}

std::string describe(const ptxsim::Error& error) {
  const std::string message = error.what();
  return message.starts_with(error.kind() + ":") ? message : error.kind() + ": " + message;
}

Binary* Registry::add_binary(const void* wrapper) {
  binaries_.push_back(std::make_unique<Binary>());
  binaries_.back()->wrapper = wrapper;
  return binaries_.back().get();
}

void Registry::remove_binary(Binary* binary) {
  std::erase_if(functions_, [&](const auto& entry) { return entry.second.binary == binary; });
  std::erase_if(variables_, [&](const auto& entry) { return entry.second.binary == binary; });
  std::erase_if(binaries_, [&](const auto& entry) { return entry.get() == binary; });
}

void Registry::add_function(Binary* binary, const void* host_function, const char* name) {
  Function function;
  function.binary = binary;
  function.name = name;
  function.display = demangle(name);
  functions_.insert_or_assign(host_function, std::move(function));
}

void Registry::add_variable(Binary* binary, const void* host_variable, const char* name, size_t bytes) {
  variables_.insert_or_assign(host_variable, Variable{binary, name, bytes, nullptr});
}

void Registry::add_managed_variable(Binary* binary, void** pointer, const char* name, size_t bytes) {
  variables_.insert_or_assign(pointer, Variable{binary, name, bytes, pointer});
}

cudaError_t Registry::find_function(const void* host_function, const DeviceProfile& device, Function** function,
                                    std::string* report) {
  const auto found = functions_.find(host_function);
  if (found == functions_.end()) return cudaErrorInvalidDeviceFunction;
  Function& result = found->second;
  load(*result.binary, device);
  if (result.binary->load_error != cudaSuccess) {
    *report = "kernel " + result.display + ": " + result.binary->load_report;
    return result.binary->load_error;
  }
  if (!result.info) result.info = result.binary->module->find(result.name);
  if (!result.info) {
    *report = "kernel " + result.display + " is not in the program's PTX";
    return cudaErrorInvalidDeviceFunction;
  }
  *function = &result;
  return cudaSuccess;
}

cudaError_t Registry::find_variable(const void* host_variable, const DeviceProfile& device, void** address,
                                    size_t* bytes, std::string* report) {
  const auto found = variables_.find(host_variable);
  if (found == variables_.end()) return cudaErrorInvalidSymbol;
  const Variable& variable = found->second;
  load(*variable.binary, device);
  if (variable.binary->load_error != cudaSuccess) {
    *report = "variable " + variable.name + ": " + variable.binary->load_report;
    return variable.binary->load_error;
  }
  *address = variable.binary->module->variable(variable.name, bytes);
  return *address ? cudaSuccess : cudaErrorInvalidSymbol;
}

cudaError_t Registry::initialise_managed(Binary* binary, const DeviceProfile& device, std::string* report) {
  for (const auto& [host_variable, variable] : variables_) {
    if (variable.binary != binary || !variable.managed_pointer) continue;
    size_t bytes = 0;
    const cudaError_t error = find_variable(host_variable, device, variable.managed_pointer, &bytes, report);
    if (error != cudaSuccess) return error;
    ptxsim::mark_initialised(*variable.managed_pointer, bytes);
  }
  return cudaSuccess;
}

}  // namespace cudart
