#include "runtime.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace cudart {
namespace {

constexpr int kAbortExitCode = 86;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool flag(const char* name) {
  const std::string value = environment(name);
  return !value.empty() && value != "0";
}

}  // namespace

Faults Faults::from_environment() {
  Faults faults;
  const std::string launch = environment("PTXSIM_FAIL_LAUNCH");
  const size_t colon = launch.rfind(':');
  if (colon != std::string::npos) faults.fail_launch(launch.substr(0, colon), std::atoi(launch.c_str() + colon + 1));
  faults.fail_malloc(std::atoi(environment("PTXSIM_FAIL_MALLOC").c_str()));
  return faults;
}

void Faults::fail_launch(std::string name, int nth) {
  launch_name_ = std::move(name);
  launch_countdown_ = nth;
}

bool Faults::launch_fails(const Function& function) {
  if (launch_countdown_ <= 0 || function.display.find(launch_name_) == std::string::npos) return false;
  return --launch_countdown_ == 0;
}

Runtime::Runtime() : options(ptxsim::Options::from_environment()), faults(Faults::from_environment()) {
  eager = flag("PTXSIM_EAGER");
  abort_on_error = flag("PTXSIM_ABORT");
  const std::string key = environment("PTXSIM_DEVICE");
  if (key == "none") return;
  if (key == "nogpu") {
    no_device_error = cudaErrorNoDevice;
    return;
  }
  device = find_device(key.empty() ? "a100" : key);
  if (!device) {
    no_device_error = cudaErrorNoDevice;
    explain("PTXSIM_DEVICE=" + key + " is not one of " + device_keys() + " | none | nogpu");
  }
}

void Runtime::fail(cudaError_t error, const std::string& message) {
  sticky = error;
  explain(message);
  streams.clear();
  if (!abort_on_error) return;
  write_counters_file();
  std::fflush(nullptr);
  _exit(kAbortExitCode);
}

void Runtime::explain(const std::string& message) {
  report = message;
  std::fprintf(stderr, "ptxsim: %s\n", message.c_str());
}

void Runtime::run_on_host(void (*function)(void*), void* data) {
  host_function_runs_ = true;
  in_host_function = true;
  mutex.unlock();
  function(data);
  mutex.lock();
  in_host_function = false;
  host_function_runs_ = false;
  host_function_ended_.notify_all();
}

void Runtime::wait_for_host_function() {
  if (!host_function_runs_) return;
  std::unique_lock lock(mutex, std::adopt_lock);
  host_function_ended_.wait(lock, [&] { return !host_function_runs_; });
  lock.release();
}

void Runtime::write_counters_file() const {
  std::string path = environment("PTXSIM_COUNTERS_FILE");
  if (const size_t place = path.find("%p"); place != std::string::npos)
    path.replace(place, 2, std::to_string(getpid()));
  if (!path.empty()) std::ofstream(path) << counters.json("") << "\n";
}

Runtime& runtime() {
  static Runtime* instance = [] {
    std::atexit([] { runtime().write_counters_file(); });
    return new Runtime;
  }();
  return *instance;
}

}  // namespace cudart
