#include "ops/op_cases.h"

#include <limits>
#include <utility>

namespace eagle31rt {

OpEntry embedding_cases();
OpEntry rms_norm_cases();
OpEntry linear_cases();
OpEntry rope_cases();
OpEntry kv_append_cases();
OpEntry paged_attention_cases();
OpEntry silu_mul_cases();
OpEntry fc_norm_cases();
OpEntry sample_cases();
OpEntry verify_chain_cases();

const std::vector<OpEntry>& op_table() {
  static const std::vector<OpEntry> table = [] {
    std::vector<OpEntry> entries;
    for (auto make : {embedding_cases, rms_norm_cases, linear_cases, rope_cases, kv_append_cases, paged_attention_cases,
                      silu_mul_cases, fc_norm_cases, sample_cases, verify_chain_cases}) {
      entries.push_back(make());
    }
    return entries;
  }();
  return table;
}

namespace {

// The finalizer of splitmix64: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float hostile_value(uint64_t kind, uint64_t bits, float ordinary) {
  using Limits = std::numeric_limits<float>;
  const bool negative = (bits & 1) != 0;
  switch (kind) {
    case 0:
      return negative ? -0.0f : 0.0f;
    case 1:
      return negative ? -Limits::infinity() : Limits::infinity();
    case 2:
      return Limits::quiet_NaN();
    case 3:
      return negative ? -Limits::max() : 1e30f;
    case 4:
      return negative ? -Limits::denorm_min() : Limits::min();
    default:
      return (bits >> 1) % 16 == 0 ? hostile_value((bits >> 5) % 5, bits >> 8, ordinary) : ordinary;
  }
}

}  // namespace

uint64_t row_hash(uint64_t row_id, uint64_t stream) { return mix(mix(row_id) ^ mix(~stream)); }

void fill_row(std::span<float> values, uint64_t row_id, uint64_t stream, float scale) {
  const uint64_t seed = row_hash(row_id, stream);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = mix(seed + i);
    const float unit = static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
    values[i] = row_id < kHostileRow ? unit * scale : hostile_value(row_id % 6, bits & 0xffffffu, unit * scale);
  }
}

}  // namespace eagle31rt
