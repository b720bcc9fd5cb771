// What a device knows of the requests that it decodes, one entry for each slot: committed length, newest token, pages,
// sampling parameters, and the last state of the draft. The host writes an entry when a request enters, and later the
// pages that it gets; steps on the device read and advance it (ops/step_rows).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "ops/step_rows/step_rows.h"

namespace eagle31rt {

class DeviceState {
 public:
  struct Entry {
    std::span<const int32_t> pages;
    int32_t length;  // committed tokens
    int32_t last_token;
    int32_t first_draft_entry;  // 0: no draft follows the request
    SamplingRow sampling;       // position is not used
  };

  // hidden_size: of the draft, 0 without one.
  DeviceState(Device& device, int64_t num_slots, int32_t pages_per_slot, int32_t page_size, int64_t hidden_size);

  void enter(int64_t slot, const Entry& entry);
  // The pages of a request that has entered, all of them: what changed is written. They bound what it may write.
  void set_pages(int64_t slot, std::span<const int32_t> pages);

  DecodeState view() const;
  int64_t num_slots() const { return num_slots_; }
  const int32_t* page_tables() const { return page_tables_.as<int32_t>(); }  // [num_slots, page_table_stride]
  int32_t page_table_stride() const { return page_table_stride_; }
  float* last_states() const { return last_states_.as<float>(); }  // [num_slots, hidden_size] fed to the next draft

 private:
  template <typename T>
  void write(const DeviceBuffer& array, int64_t slot, const T& value) {
    device_.copy_to_device(array.as<T>() + slot, &value, sizeof(T));
  }

  Device& device_;
  int64_t num_slots_;
  int32_t page_table_stride_, page_size_;
  std::vector<std::vector<int32_t>> pages_;  // [num_slots] as the device has them
  DeviceBuffer length_, last_token_, max_entries_, first_draft_entry_, sampling_, page_tables_, last_states_;
};

}  // namespace eagle31rt
