#include "bindings/testing_fake_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace eagle31rt {

namespace {

constexpr size_t kArenaSize = size_t{8} << 30;  // address space
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;

struct FakeGraph : DeviceGraph {
  std::vector<std::function<void()>> work;
};

}  // namespace

FakeDevice::FakeDevice() {
  void* memory = mmap(nullptr, kArenaSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  E31_CHECK(memory != MAP_FAILED, kResource, "no address space for the fake device");
  arena_ = static_cast<char*>(memory);
}

FakeDevice::~FakeDevice() { munmap(arena_, kArenaSize); }

DeviceInfo FakeDevice::info() const {
  return {.name = "fake", .total_memory = int64_t{1} << 30, .free_memory = (int64_t{1} << 30) - int64_t(arena_used_)};
}

void* FakeDevice::allocate(size_t num_bytes, HugePages) {
  const size_t used = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t size = (used + kPage - 1) / kPage * kPage;
  E31_CHECK(arena_used_ + size + kPage <= kArenaSize, kResource, "the fake device has no ", num_bytes, " bytes left");
  const Region region{arena_ + arena_used_, size};
  arena_used_ += size + kPage;  // the last page stays closed
  regions_.push_back(region);
  mprotect(region.begin, size, PROT_READ | PROT_WRITE);
  std::memset(region.begin, 0xff, size);
  mprotect(region.begin, size, PROT_NONE);
  return region.begin + size - used;
}

void FakeDevice::protect(int protection) const {
  for (const Region& region : regions_) {
    E31_CHECK(mprotect(region.begin, region.size, protection) == 0, kResource, "too many engines on fake devices");
  }
}

void* FakeDevice::allocate_host(size_t num_bytes) {
  void* memory = std::malloc(num_bytes == 0 ? 1 : num_bytes);
  E31_CHECK(memory != nullptr, kResource, "no host memory");
  host_memory_.insert(memory);
  return memory;
}

void FakeDevice::deallocate_host(void* memory) noexcept {
  host_memory_.erase(memory);
  std::free(memory);
}

void FakeDevice::copy_to_device(void* destination, const void* source, size_t num_bytes) {
  check_usable();
  if (num_bytes == 0) return;
  if (host_memory_.count(source) > 0) {
    enqueue([=] { std::memcpy(destination, source, num_bytes); });
    return;
  }
  const auto* bytes = static_cast<const char*>(source);
  enqueue([destination, values = std::vector<char>(bytes, bytes + num_bytes)] {
    std::memcpy(destination, values.data(), values.size());
  });
}

void FakeDevice::copy_to_host(void* destination, const void* source, size_t num_bytes) {
  check_usable();
  E31_INVARIANT(!capturing_);
  num_copies_to_host += 1;
  bytes_to_host += static_cast<int64_t>(num_bytes);
  copy(destination, source, num_bytes);
}

void FakeDevice::copy(void* destination, const void* source, size_t num_bytes) {
  check_usable();
  if (num_bytes > 0) enqueue([=] { std::memcpy(destination, source, num_bytes); });
}

void FakeDevice::fill(void* destination, uint8_t value, size_t num_bytes) {
  check_usable();
  if (num_bytes > 0) enqueue([=] { std::memset(destination, value, num_bytes); });
}

void FakeDevice::enqueue(std::function<void()> work) { (capturing_ ? recorded_ : queue_).push_back(std::move(work)); }

void FakeDevice::synchronize() {
  check_usable();
  E31_INVARIANT(!capturing_);
  num_synchronizations += 1;
  protect(PROT_READ | PROT_WRITE);
  std::vector<std::function<void()>> work;
  work.swap(queue_);
  try {
    for (const auto& one : work) one();
  } catch (...) {
    protect(PROT_NONE);
    throw;
  }
  protect(PROT_NONE);
}

void* FakeDevice::workspace(size_t num_bytes) { return allocate(num_bytes, HugePages::kNo); }

void FakeDevice::begin_capture() {
  check_usable();
  capturing_ = true;
  recorded_.clear();
}

std::unique_ptr<DeviceGraph> FakeDevice::end_capture() {
  capturing_ = false;
  auto graph = std::make_unique<FakeGraph>();
  graph->work.swap(recorded_);
  num_graphs += 1;
  return graph;
}

void FakeDevice::abandon_capture() noexcept {
  capturing_ = false;
  recorded_.clear();
}

void FakeDevice::launch(DeviceGraph& graph) {
  check_usable();
  num_graph_launches += 1;
  for (const auto& one : static_cast<FakeGraph&>(graph).work) queue_.push_back(one);
}

void FakeDevice::launch_operator(const char* name, std::function<void()> work) {
  check_usable();
  num_operators += 1;
  if (fault_ != Fault::kNone && operators_until_fault_-- == 0) {
    const Fault fault = fault_;
    fault_ = Fault::kNone;
    if (fault == Fault::kLaunch) {
      lost_ = loses_device_;
      fail(ErrorCode::kDevice, "the launch of ", name, " failed");
    }
    // Once: a graph that was recorded with it runs well the next time.
    work = [this, name, work, struck = std::make_shared<bool>(false)] {
      if (*struck) return work();
      *struck = true;
      lost_ = loses_device_;
      fail(ErrorCode::kDevice, "the device failed while it ran ", name);
    };
  }
  enqueue(std::move(work));
}

void FakeDevice::fail_after(int64_t count, Fault fault, bool loses_device) {
  fault_ = fault;
  operators_until_fault_ = count;
  loses_device_ = loses_device;
}

void FakeDevice::check_usable() const { E31_CHECK(!lost_, kDevice, "the device is lost"); }

}  // namespace eagle31rt
