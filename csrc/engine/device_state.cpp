#include "engine/device_state.h"

#include "base/check.h"

namespace eagle31rt {

DeviceState::DeviceState(Device& device, int64_t num_slots, int32_t pages_per_slot, int64_t hidden_size)
    : device_(device), num_slots_(num_slots), page_table_stride_(pages_per_slot) {
  const auto slots = static_cast<size_t>(num_slots);
  for (DeviceBuffer* array : {&length_, &last_token_, &max_entries_, &is_drafting_}) {
    *array = DeviceBuffer(device, slots * sizeof(int32_t));
  }
  sampling_ = DeviceBuffer(device, slots * sizeof(SamplingRow));
  page_tables_ = DeviceBuffer(device, slots * static_cast<size_t>(pages_per_slot) * sizeof(int32_t));
  last_states_ = DeviceBuffer(device, slots * static_cast<size_t>(hidden_size) * sizeof(float));
  // Rows of a request that have nothing to do read past its own pages: page 0 is there, whoever owns it.
  device.fill(page_tables_.data(), 0, page_tables_.size());
  device.fill(last_states_.data(), 0, last_states_.size());
}

void DeviceState::enter(int64_t slot, const Entry& entry) {
  E31_INVARIANT(slot >= 0 && slot < num_slots_ && static_cast<int32_t>(entry.pages.size()) <= page_table_stride_);
  write(length_, slot, entry.length);
  write(last_token_, slot, entry.last_token);
  write(max_entries_, slot, entry.max_entries);
  write(is_drafting_, slot, int32_t{entry.is_drafting});
  write(sampling_, slot, entry.sampling);
  device_.copy_to_device(page_tables_.as<int32_t>() + slot * page_table_stride_, entry.pages.data(),
                         entry.pages.size_bytes());
}

DecodeState DeviceState::view() const {
  return {.length = length_.as<int32_t>(),
          .last_token = last_token_.as<int32_t>(),
          .max_entries = max_entries_.as<int32_t>(),
          .is_drafting = is_drafting_.as<int32_t>(),
          .sampling = sampling_.as<SamplingRow>(),
          .num_slots = num_slots_};
}

}  // namespace eagle31rt
