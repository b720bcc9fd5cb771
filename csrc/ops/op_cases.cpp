#include "ops/op_cases.h"

#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "device/device.h"
#include "device/execution_context.h"
#include "ops/ops.h"

namespace eagle31rt {

#define E31_DECLARE(op, Params) OpEntry op##_cases();
E31_FOR_EACH_OP(E31_DECLARE)
#undef E31_DECLARE

const std::vector<OpEntry>& op_table() {
  static const std::vector<OpEntry> table = {
#define E31_ENTRY(op, Params) op##_cases(),
      E31_FOR_EACH_OP(E31_ENTRY)
#undef E31_ENTRY
  };
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

CaseLayouts& case_layouts() {
  thread_local CaseLayouts layouts;
  return layouts;
}

void wait_for_device(const ExecutionContext& context) {
  if (context.device != nullptr) context.device->synchronize();
}

PackedWeight make_case_weight(DType dtype, int64_t out_features, int64_t in_features, const WeightForm& form) {
  const WeightLayout layout = case_layouts().weights;
  const size_t num_bytes = PackedWeight::num_bytes_of(dtype, out_features, in_features, layout, form);
  std::pmr::memory_resource* resource = std::pmr::get_default_resource();
  constexpr size_t kAlignment = 64;
  auto* data = static_cast<std::byte*>(resource->allocate(num_bytes, kAlignment));
  std::memset(data, 0, num_bytes);
  const auto free = [resource, num_bytes](std::byte* memory) { resource->deallocate(memory, num_bytes, kAlignment); };
  return {dtype, out_features, in_features, std::shared_ptr<std::byte>(data, free), 0, layout, form};
}

uint64_t row_hash(uint64_t row_id, uint64_t stream) { return mix(mix(row_id) ^ mix(~stream)); }

void fill_row(std::span<float> values, uint64_t row_id, uint64_t stream, float scale) {
  const uint64_t seed = row_hash(row_id, stream);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = mix(seed + i);
    const float unit = static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
    values[i] = row_id < kHostileRow ? unit * scale : hostile_value(row_id % 6, bits & 0xffffffu, unit * scale);
  }
}

namespace {

// Between a half and all of 0.1 over the largest code, as the form's type holds it.
float case_scale(const WeightForm& form, uint64_t bits) {
  if (form.scale == ScaleType::kE8M0) return 0x1p-8f * static_cast<float>(1 << bits % 3);
  const float largest = form.code == WeightCode::kFp8 ? 448.0f : 8.0f;
  const float scale = 0.1f / largest * (0.5f + 0x1p-25f * static_cast<float>(bits >> 40));
  return form.scale == ScaleType::kBFloat16 ? rounded_to(DType::kBFloat16, scale) : scale;
}

}  // namespace

void write_case_row(PackedWeight& weight, int64_t row, uint64_t row_id, uint64_t stream) {
  const PackedWeightView view = weight.view();
  const auto size = static_cast<size_t>(view.in_features);
  if (!view.form.is_quantised()) {
    std::vector<float> values(size);
    fill_row(values, row_id, stream, 0.1f);
    weight.write_rows(row, values.data(), DType::kFloat32, 1);
    return;
  }
  const uint64_t seed = row_hash(row_id, stream);
  std::vector<uint8_t> codes(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t code = mix(seed + i) & (view.form.code == WeightCode::kFp8 ? 0xffu : 0xfu);
    codes[i] = static_cast<uint8_t>((code & 0x7fu) == 0x7fu ? code - 1 : code);  // no NaN
  }
  std::vector<float> scales(static_cast<size_t>(view.form.num_groups(view.in_features)));
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = case_scale(view.form, mix(~seed + i));
  weight.write_codes(row, codes.data(), scales.data(), 1);
}

std::string describe_form(const WeightForm& form) {
  if (!form.is_quantised()) return "";
  const char* code = form.code == WeightCode::kFp8 ? "FP8" : form.code == WeightCode::kInt4 ? "int4" : "FP4";
  return concat(", ", code, " in groups of ", form.group_size);
}

}  // namespace eagle31rt
