#include "counters.h"

#include <algorithm>
#include <bit>

#include "memory.h"

namespace ptxsim {
namespace {

// True if the words of the lanes lie in banks of their own, which is what a good layout gives.
bool all_in_different_banks(Mask group, const uint64_t* offsets, uint32_t words_per_lane) {
  const uint32_t lane_banks = words_per_lane >= 32 ? ~0u : (1u << words_per_lane) - 1;
  uint32_t used = 0;
  for (Mask rest = group; rest != 0; rest &= rest - 1) {
    const uint32_t banks = lane_banks << (offsets[std::countr_zero(rest)] / kBankBytes % kNumBanks);
    if ((used & banks) != 0) return false;
    used |= banks;
  }
  return true;
}

}  // namespace

SectorSet::SectorSet()
    : words_(reinterpret_cast<uint64_t*>(reserve_zeroed(arena_bytes() / kSectorBytes / 8 + sizeof(uint64_t)))) {}

void SectorSet::add(uint64_t first, uint64_t last) {
  for (uint64_t word = first / 64; word <= last / 64; ++word) {
    const uint64_t low = word == first / 64 ? first % 64 : 0, high = word == last / 64 ? last % 64 : 63;
    if (words_[word] == 0) touched_.push_back(word);
    words_[word] |= (~uint64_t{0} >> (63 - high)) & (~uint64_t{0} << low);
  }
}

uint64_t SectorSet::take_count() {
  uint64_t count = 0;
  for (const uint64_t word : touched_) {
    count += static_cast<uint64_t>(std::popcount(words_[word]));
    words_[word] = 0;
  }
  touched_.clear();
  return count;
}

uint64_t TrafficCounter::sectors(Mask mask, const uint64_t* addresses, uint32_t bytes, SectorSet* load,
                                 SectorSet* store) {
  const uint64_t base = reinterpret_cast<uint64_t>(arena_begin());
  const auto mark = [&](uint64_t first, uint64_t last) {
    if (load != nullptr) load->add(first, last);
    if (store != nullptr) store->add(first, last);
  };
  if (mask == kFullMask && is_contiguous(addresses, bytes)) {
    const uint64_t first = (addresses[0] - base) / kSectorBytes;
    const uint64_t last = (addresses[0] - base + kWarpSize * uint64_t{bytes} - 1) / kSectorBytes;
    mark(first, last);
    return last - first + 1;
  }
  uint64_t list[kWarpSize];
  size_t count = 0;
  bool ascending = true;
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const uint64_t sector = (addresses[std::countr_zero(rest)] - base) / kSectorBytes;
    if (count != 0 && list[count - 1] == sector) continue;
    ascending = ascending && (count == 0 || list[count - 1] < sector);
    list[count++] = sector;
  }
  if (!ascending) {
    std::sort(list, list + count);
    count = static_cast<size_t>(std::unique(list, list + count) - list);
  }
  for (size_t i = 0; i < count; ++i) mark(list[i], list[i]);
  return count;
}

void TrafficCounter::global(Mask mask, const uint64_t* addresses, uint32_t bytes, bool load, bool store) {
  const uint64_t asked = static_cast<uint64_t>(std::popcount(mask)) * bytes;
  const uint64_t touched = sectors(mask, addresses, bytes, load ? &loaded_ : nullptr, store ? &stored_ : nullptr);
  if (load) {
    counts_.global_load_bytes += asked;
    counts_.global_load_sectors += touched;
  }
  if (store) {
    counts_.global_store_bytes += asked;
    counts_.global_store_sectors += touched;
  }
}

uint32_t wavefronts(Mask group, const uint64_t* offsets, uint32_t bytes) {
  const uint32_t words_per_lane = std::max(bytes / kBankBytes, 1u);
  if (all_in_different_banks(group, offsets, words_per_lane)) return 1;
  uint64_t words[kNumBanks * 4];  // distinct words so far, chained by bank
  int8_t next[kNumBanks * 4];
  int8_t head[kNumBanks];
  std::fill(head, head + kNumBanks, int8_t{-1});
  int8_t used = 0;
  uint32_t depth[kNumBanks] = {}, most = 0;
  for (Mask rest = group; rest != 0; rest &= rest - 1) {
    for (uint32_t part = 0; part < words_per_lane; ++part) {
      const uint64_t word = offsets[std::countr_zero(rest)] / kBankBytes + part;
      const uint32_t bank = static_cast<uint32_t>(word % kNumBanks);
      int8_t known = head[bank];
      while (known >= 0 && words[known] != word) known = next[known];
      if (known >= 0) continue;
      words[used] = word;
      next[used] = head[bank];
      head[bank] = used++;
      most = std::max(most, ++depth[bank]);
    }
  }
  return most;
}

void TrafficCounter::shared(Mask mask, const uint64_t* offsets, uint32_t bytes) {
  ++counts_.shared_accesses;
  const uint32_t groups = bytes <= 4 ? 1 : bytes / 4;
  if (mask == kFullMask && is_contiguous(offsets, bytes)) {
    counts_.shared_wavefronts += groups;
    return;
  }
  const uint32_t lanes = kWarpSize / groups;
  for (uint32_t group = 0; group < groups; ++group) {
    const Mask members = mask & ((lanes == 32 ? kFullMask : (Mask{1} << lanes) - 1) << (group * lanes % 32));
    if (members == 0) continue;
    const uint32_t needed = wavefronts(members, offsets, bytes);
    counts_.shared_wavefronts += needed;
    counts_.bank_conflicts += needed - 1;
  }
}

void TrafficCounter::end_launch(Counters& totals) {
  totals.global_load_bytes += counts_.global_load_bytes;
  totals.global_store_bytes += counts_.global_store_bytes;
  totals.global_load_sectors += counts_.global_load_sectors;
  totals.global_store_sectors += counts_.global_store_sectors;
  totals.unique_load_sectors += loaded_.take_count();
  totals.unique_store_sectors += stored_.take_count();
  totals.shared_accesses += counts_.shared_accesses;
  totals.shared_wavefronts += counts_.shared_wavefronts;
  totals.bank_conflicts += counts_.bank_conflicts;
  counts_ = {};
}

}  // namespace ptxsim
