// The table of operators that tests and benches iterate over.
//
// A case is one prepared problem whose rows are made from row ids: row r's inputs depend on row_ids[r] (and the
// variant) only. So "row id 7 among 255 others" and "row id 7 alone" must give the same output bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "ops/kv_append/kv_cache_view.h"
#include "ops/linear/packed_weight.h"

namespace eagle31rt {

struct ExecutionContext;

// Against the reference: |a - b| <= absolute + relative * |b| for each float, exact for integers.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

// A case keeps every buffer that an operator touches in std::pmr containers and in make_case_weight(): on another
// device than the CPU the default memory resource gives memory that both sides address, so that one case serves every
// backend.
struct CaseLayouts {
  WeightLayout weights = WeightLayout::kPanels;
  KeyLayout keys = KeyLayout::kTokensFastest;
};
CaseLayouts& case_layouts();                            // of the calling thread; set while cases are made and run
void wait_for_device(const ExecutionContext& context);  // before a case reads what its operator wrote
PackedWeight make_case_weight(DType dtype, int64_t out_features, int64_t in_features, const WeightForm& form = {});
// Forms as checkpoints have them.
inline constexpr WeightForm kFp8Form = {WeightCode::kFp8, ScaleType::kFloat32, 128};
inline constexpr WeightForm kInt4Form = {WeightCode::kInt4, ScaleType::kBFloat16, 32};
inline constexpr WeightForm kMxfp4Form = {WeightCode::kFp4, ScaleType::kE8M0, 32};

class OpCase {
 public:
  virtual ~OpCase() = default;
  virtual void run(ExecutionContext& context) = 0;  // context.ops, into output()
  virtual void run_reference() = 0;                 // into the same output()
  // Output row r as raw bytes; float32 unless the entry says integer.
  virtual std::span<const std::byte> output(int64_t row) const = 0;
};

struct OpEntry {
  std::string name;                   // "linear"
  std::vector<std::string> variants;  // shapes and dtypes, readable: "bfloat16 576->1536"
  bool integer_output = false;
  Tolerance tolerance;
  Tolerance cuda_tolerance = {-1, -1};  // negative: as `tolerance`; matrix inputs are 16-bit there
  std::unique_ptr<OpCase> (*make)(int variant, std::span<const uint64_t> row_ids) = nullptr;
};

// One function per operator folder (cases.cpp); the table is built in op_cases.cpp.
const std::vector<OpEntry>& op_table();

// Inputs of cases. Equal arguments give equal values on every machine; `stream` tells the inputs of a row apart.
// Row ids from kHostileRow on ask for a row that must not disturb its neighbours: by id % 6 all zeros, all +-Inf, all
// NaN, huge, subnormal, or random with a few of each. Tests compare such a row for row-exactness but not with the
// reference.
inline constexpr uint64_t kHostileRow = uint64_t{1} << 32;

// Uniform in [-scale, scale), or hostile.
void fill_row(std::span<float> values, uint64_t row_id, uint64_t stream, float scale = 1.0f);
// Writes a row of elements within +-0.1 into a weight; into a quantised one random codes and scales. For cases' names,
// ", int4 in groups of 32", or nothing.
void write_case_row(PackedWeight& weight, int64_t row, uint64_t row_id, uint64_t stream);
std::string describe_form(const WeightForm& form);
// 64 well-mixed bits, for whatever else a row needs: lengths, ids, permutations.
uint64_t row_hash(uint64_t row_id, uint64_t stream);

}  // namespace eagle31rt
