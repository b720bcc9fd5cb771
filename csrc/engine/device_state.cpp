#include "engine/device_state.h"

#include <algorithm>

#include "base/check.h"

namespace eagle31rt {

DeviceState::DeviceState(Device& device, int64_t num_slots, int32_t pages_per_slot, int32_t page_size,
                         int64_t hidden_size)
    : device_(device),
      num_slots_(num_slots),
      page_table_stride_(pages_per_slot),
      page_size_(page_size),
      pages_(static_cast<size_t>(num_slots)) {
  const auto slots = static_cast<size_t>(num_slots);
  for (DeviceBuffer* array : {&length_, &last_token_, &max_entries_, &first_draft_entry_}) {
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
  E31_INVARIANT(slot >= 0 && slot < num_slots_);
  write(length_, slot, entry.length);
  write(last_token_, slot, entry.last_token);
  write(first_draft_entry_, slot, entry.first_draft_entry);
  write(sampling_, slot, entry.sampling);
  pages_[static_cast<size_t>(slot)].clear();
  set_pages(slot, entry.pages);
}

void DeviceState::set_pages(int64_t slot, std::span<const int32_t> pages) {
  std::vector<int32_t>& known = pages_[static_cast<size_t>(slot)];
  const auto [difference, unused] = std::ranges::mismatch(pages, known);
  if (difference == pages.end() && pages.size() == known.size()) return;
  const auto first = difference - pages.begin();
  E31_INVARIANT(static_cast<int32_t>(pages.size()) <= page_table_stride_);
  known.assign(pages.begin(), pages.end());
  write(max_entries_, slot, static_cast<int32_t>(known.size()) * page_size_);
  device_.copy_to_device(page_tables_.as<int32_t>() + slot * page_table_stride_ + first, known.data() + first,
                         (known.size() - static_cast<size_t>(first)) * sizeof(int32_t));
}

DecodeState DeviceState::view() const {
  return {.length = length_.as<int32_t>(),
          .last_token = last_token_.as<int32_t>(),
          .max_entries = max_entries_.as<int32_t>(),
          .first_draft_entry = first_draft_entry_.as<int32_t>(),
          .sampling = sampling_.as<SamplingRow>(),
          .num_slots = num_slots_};
}

}  // namespace eagle31rt
