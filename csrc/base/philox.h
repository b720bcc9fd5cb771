// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
// 3", 2011). A number is a pure function of (request seed, sequence position, purpose, index), so it depends on neither
// batch, slot, step nor thread.
//
// The functions are static on purpose: cpu.cpp files include this header, and an inline function with external linkage
// that was compiled there for AVX-512 could be the copy that the linker keeps for everybody.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace eagle31rt {

// Independent streams of one request. Sharing one between two uses changes the output law (batch_correctness: draft,
// coin and residual from one stream).
enum class NoisePurpose : uint32_t {
  kSample = 0,     // plain sampling of a token
  kDraft = 1,      // drawing a draft
  kAccept = 2,     // acceptance coins
  kResidual = 3,   // recovered and bonus tokens of ratio-based verification
  kSynthetic = 4,  // coins of synthetic acceptance
  kSeed = 5,       // seeds of the samples 1.. of one request
};

struct PhiloxBlock {
  uint32_t word[4];
};

E31_HOST_DEVICE static inline PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;  // golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

// 64 uniform bits. `index` separates draws of one purpose at one position.
E31_HOST_DEVICE static inline uint64_t random_bits64(uint64_t seed, int64_t position, NoisePurpose purpose,
                                                     uint32_t index) {
  const uint64_t place = static_cast<uint64_t>(position);
  const PhiloxBlock counter = {
      {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), static_cast<uint32_t>(purpose), index}};
  const PhiloxBlock bits = philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return bits.word[0] | (uint64_t{bits.word[1]} << 32);
}

// A double in [0, 1) from the upper 53 bits.
E31_HOST_DEVICE static inline double unit_interval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// The seed of sample `sample_index` of the n that one request asks for. Sample 0 keeps the request's seed, so n = 1 and
// the first of n = 5 give the same ids.
E31_HOST_DEVICE static inline uint64_t derive_seed(uint64_t seed, uint32_t sample_index) {
  return sample_index == 0 ? seed : random_bits64(seed, 0, NoisePurpose::kSeed, sample_index);
}

}  // namespace eagle31rt
