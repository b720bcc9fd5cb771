// A device for tests of what happens between host and device, without one: the operators are the CPU's, but memory and
// time are as on a GPU.
//
//   memory   lies in an arena that the host cannot touch: an access outside of operators and copies is a segmentation
//            fault, and so is one of theirs past the end of a buffer (to 256 bytes) or before its first page. Fresh
//            memory is all ones (NaN, -1).
//   time     work is only queued, and done at synchronize(); graphs are recorded and queued again.
//   faults   the n-th operator from now on fails, at its launch or while it runs; with or without the loss of the
//   device.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"

namespace eagle31rt {

enum class Fault { kNone, kLaunch, kRun };

class FakeDevice : public Device {
 public:
  FakeDevice();
  ~FakeDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCpu; }  // the layouts of the CPU's operators
  DeviceInfo info() const override;
  bool is_host() const override { return false; }
  void* allocate(size_t num_bytes, HugePages huge_pages) override;
  void deallocate(void*) noexcept override {}  // never reused: a stale pointer reads what it had
  void* allocate_host(size_t num_bytes) override;
  void deallocate_host(void* memory) noexcept override;
  void* allocate_shared(size_t num_bytes) override { return allocate_host(num_bytes); }
  void deallocate_shared(void* memory) noexcept override { deallocate_host(memory); }
  void copy_to_device(void* destination, const void* source, size_t num_bytes) override;
  void copy_to_host(void* destination, const void* source, size_t num_bytes) override;
  void copy(void* destination, const void* source, size_t num_bytes) override;
  void fill(void* destination, uint8_t value, size_t num_bytes) override;
  void synchronize() override;
  void* workspace(size_t num_bytes) override;
  bool has_graphs() const override { return true; }
  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;
  void abandon_capture() noexcept override;
  void launch(DeviceGraph& graph) override;

  void launch_operator(const char* name, std::function<void()> work);
  // The next operator after `count` others fails. loses_device: everything after it fails as well.
  void fail_after(int64_t count, Fault fault, bool loses_device);

  int64_t num_operators = 0, num_synchronizations = 0, num_graph_launches = 0, num_graphs = 0;
  int64_t num_copies_to_host = 0, bytes_to_host = 0;

 private:
  void enqueue(std::function<void()> work);
  void check_usable() const;

  void protect(int protection) const;

  struct Region {
    char* begin;
    size_t size;
  };
  char* arena_;
  size_t arena_used_ = 0;
  std::vector<Region> regions_;
  std::set<const void*> host_memory_;
  std::vector<std::function<void()>> queue_, recorded_;
  bool capturing_ = false, lost_ = false, loses_device_ = false;
  Fault fault_ = Fault::kNone;
  int64_t operators_until_fault_ = 0;
};

}  // namespace eagle31rt
