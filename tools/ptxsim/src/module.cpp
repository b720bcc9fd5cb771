#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "checker.h"
#include "counters.h"
#include "decoder.h"
#include "parser.h"
#include "ptxsim.h"
#include "scheduler.h"

namespace ptxsim {
namespace {

constexpr uint32_t kMaxSharedBytes = 227 * 1024;  // of a block, sm_90
constexpr uint32_t kMaxThreads = 1024;

// One launch at a time: counters and checker keep one state for all of device memory.
std::mutex launch_mutex;

TrafficCounter& traffic_counter() {
  static TrafficCounter& counter = *new TrafficCounter;  // never destroyed: programs launch in exit handlers
  return counter;
}

Checker& checker() {
  static Checker& instance = *new Checker;
  return instance;
}

KernelInfo describe(const Function& function, const SharedLayout& shared) {
  KernelInfo info;
  info.name = function.name;
  info.max_threads = function.max_threads;
  info.static_shared_bytes = shared.static_bytes;
  for (const Variable& parameter : function.parameters) {
    info.parameter_bytes = (info.parameter_bytes + parameter.align - 1) / parameter.align * parameter.align;
    info.parameters.push_back({parameter.name, info.parameter_bytes, parameter.size});
    info.parameter_bytes += parameter.size;
  }
  return info;
}

[[noreturn]] void refuse(const std::string& kernel, const std::string& why) {
  throw Error("launch", "launch: " + kernel + ": " + why);
}

void check_config(const KernelInfo& info, const Module::LaunchConfig& config) {
  if (config.grid.count() == 0 || config.block.count() == 0 || config.cluster.count() == 0)
    refuse(info.name, "an empty grid, block or cluster");
  if (config.block.count() > std::min(info.max_threads, kMaxThreads)) {
    refuse(info.name, std::to_string(config.block.count()) + " threads in a block, at most " +
                          std::to_string(std::min(info.max_threads, kMaxThreads)));
  }
  if (info.static_shared_bytes + config.dynamic_shared_bytes > kMaxSharedBytes) {
    refuse(info.name, std::to_string(info.static_shared_bytes + config.dynamic_shared_bytes) +
                          " bytes of shared memory, at most " + std::to_string(kMaxSharedBytes));
  }
  if (config.grid.x % config.cluster.x != 0 || config.grid.y % config.cluster.y != 0 ||
      config.grid.z % config.cluster.z != 0)
    refuse(info.name, "the grid is no multiple of the cluster");
}

bool flag(const char* name, bool fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::strcmp(value, "0") != 0;
}

}  // namespace

Options Options::from_environment() {
  Options options;
  if (const char* seed = std::getenv("PTXSIM_SEED")) {
    options.shuffle = true;
    options.seed = std::strtoull(seed, nullptr, 0);
  }
  options.race = flag("PTXSIM_RACE", false);
  options.uninitialised = flag("PTXSIM_UNINITIALISED", options.race);
  options.counters = flag("PTXSIM_COUNTERS", true);
  return options;
}

struct Module::Impl {
  struct Entry {
    KernelInfo info;
    SharedLayout shared;
    std::unique_ptr<Kernel> kernel;  // null until its first launch
  };
  ParsedModule parsed;
  std::map<std::string, Entry> entries;

  ~Impl() {
    for (auto& [name, variable] : parsed.variables) {
      if (variable.address != nullptr) deallocate(variable.address);
    }
  }

  void place_variables() {
    for (auto& [name, variable] : parsed.variables) {
      if ((variable.space != Space::kGlobal && variable.space != Space::kConst) ||
          (variable.external && variable.size == 0))
        continue;
      variable.address = static_cast<std::byte*>(allocate(variable.size));
      if (variable.address == nullptr) throw Error("launch", "launch: no device memory for the variable " + name);
    }
    for (auto& [name, variable] : parsed.variables) {
      if (variable.address == nullptr) continue;
      std::memset(variable.address, 0, variable.size);
      if (!variable.initial.empty()) std::memcpy(variable.address, variable.initial.data(), variable.size);
      for (const Variable::Pointer& pointer : variable.pointers) {
        const auto target = parsed.variables.find(pointer.symbol);
        if (target == parsed.variables.end() || target->second.address == nullptr)
          throw Error("syntax", "address of '" + pointer.symbol + "', which has none");
        const std::byte* address = target->second.address + pointer.addend;
        std::memcpy(variable.address + pointer.offset, &address, sizeof address);
      }
      mark_initialised(variable.address, variable.size);
    }
  }
};

Module::Module() : impl_(std::make_unique<Impl>()) {}
Module::~Module() = default;

std::unique_ptr<Module> Module::parse(std::string_view ptx) {
  std::unique_ptr<Module> module(new Module);
  Impl& impl = *module->impl_;
  impl.parsed = parse_module(ptx);
  impl.place_variables();
  for (const auto& [name, function] : impl.parsed.functions) {
    if (!function.entry || !function.defined) continue;
    Impl::Entry& entry = impl.entries[name];
    entry.shared = lay_out_shared(impl.parsed, function);
    entry.info = describe(function, entry.shared);
  }
  return module;
}

std::vector<std::string> Module::kernel_names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : impl_->entries) names.push_back(name);
  return names;
}

const KernelInfo* Module::find(const std::string& name) const {
  const auto found = impl_->entries.find(name);
  return found == impl_->entries.end() ? nullptr : &found->second.info;
}

void* Module::variable(const std::string& name, size_t* size) const {
  const auto found = impl_->parsed.variables.find(name);
  if (found == impl_->parsed.variables.end() || found->second.address == nullptr) return nullptr;
  if (size != nullptr) *size = found->second.size;
  return found->second.address;
}

void Module::launch(const std::string& name, const LaunchConfig& config, const std::byte* parameters,
                    const Options& options, Counters& counters) {
  const std::lock_guard lock(launch_mutex);
  const auto found = impl_->entries.find(name);
  if (found == impl_->entries.end()) refuse(name, "no such kernel");
  Impl::Entry& entry = found->second;
  check_config(entry.info, config);
  if (!entry.kernel)
    entry.kernel = Decoder::decode(impl_->parsed, impl_->parsed.functions.find(name)->second, entry.info, entry.shared);
  // A copy that the alignment of any parameter fits.
  std::vector<std::max_align_t> block(entry.info.parameter_bytes / sizeof(std::max_align_t) + 1);
  if (entry.info.parameter_bytes != 0) std::memcpy(block.data(), parameters, entry.info.parameter_bytes);
  Launch launch;
  launch.kernel = entry.kernel.get();
  launch.grid = config.grid;
  launch.block = config.block;
  launch.cluster = config.cluster;
  launch.dynamic_shared_bytes = config.dynamic_shared_bytes;
  launch.parameters = reinterpret_cast<const std::byte*>(block.data());
  launch.parameter_bytes = entry.info.parameter_bytes;
  launch.traffic = options.counters ? &traffic_counter() : nullptr;
  if (options.race || options.uninitialised) {
    launch.checker = &checker();
    launch.checker->begin_launch(options);
  }
  launch.matrix_instructions.resize(entry.kernel->matrix_names.size());
  const auto finish = [&] {
    ++counters.launches;
    counters.block_threads = std::max(counters.block_threads, config.block.count());
    counters.dynamic_shared_bytes = std::max<uint64_t>(counters.dynamic_shared_bytes, config.dynamic_shared_bytes);
    counters.warp_instructions += launch.warp_instructions;
    counters.thread_instructions += launch.thread_instructions;
    for (size_t i = 0; i < launch.matrix_instructions.size(); ++i) {
      if (launch.matrix_instructions[i] != 0)
        counters.matrix_instructions[entry.kernel->matrix_names[i]] += launch.matrix_instructions[i];
    }
    if (launch.traffic != nullptr) launch.traffic->end_launch(counters);
  };
  try {
    run_launch(launch, options);
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

}  // namespace ptxsim
