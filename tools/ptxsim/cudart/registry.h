// What a program registered before main: its fat binaries, kernels and variables. Modules are parsed at first use.
#pragma once

#include <driver_types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "fatbin.h"
#include "ptxsim.h"

namespace cudart {

struct Binary {
  const void* wrapper = nullptr;
  bool loaded = false;  // or tried
  cudaError_t load_error = cudaSuccess;
  std::string load_report;
  int architecture = 0;  // of the PTX in use
  std::unique_ptr<ptxsim::Module> module;
};

struct Function {
  Binary* binary = nullptr;
  std::string name;                          // mangled
  std::string display;                       // demangled
  const ptxsim::KernelInfo* info = nullptr;  // once its module is loaded
  int max_dynamic_shared = -1;               // bytes; -1: never set, the limit is what 48 KiB leave
  int shared_carveout = -1;
  bool non_portable_cluster = false;
};

struct Variable {
  Binary* binary = nullptr;
  std::string name;
  size_t bytes = 0;
  void** managed_pointer = nullptr;  // where the program looks up its __managed__ variable
};

class Registry {
 public:
  Binary* add_binary(const void* wrapper);
  void remove_binary(Binary* binary);
  void add_function(Binary* binary, const void* host_function, const char* name);
  void add_variable(Binary* binary, const void* host_variable, const char* name, size_t bytes);
  void add_managed_variable(Binary* binary, void** pointer, const char* name, size_t bytes);

  // Finds the kernel and loads its module for the device. `report` explains an error of loading.
  cudaError_t find_function(const void* host_function, const DeviceProfile& device, Function** function,
                            std::string* report);
  cudaError_t find_variable(const void* host_variable, const DeviceProfile& device, void** address, size_t* bytes,
                            std::string* report);
  // Points the program's managed variables of this binary to their memory.
  cudaError_t initialise_managed(Binary* binary, const DeviceProfile& device, std::string* report);

 private:
  std::vector<std::unique_ptr<Binary>> binaries_;
  std::map<const void*, Function> functions_;
  std::map<const void*, Variable> variables_;
};

std::string demangle(const std::string& name);

// The error's message, with its kind in front.
std::string describe(const ptxsim::Error& error);

}  // namespace cudart
