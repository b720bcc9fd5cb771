#include "device/cpu/simd.h"
#include "device/execution_context.h"
#include "ops/embedding/embedding.h"

namespace eagle31rt::E31_ISA {

namespace {

// Neighbouring features of one token lie a panel row apart: each costs a cache line, all of them independent.
template <typename Table>
void gather_row(const PackedWeightView& table, int64_t token, float scale, float* output) {
  using Element = typename Table::Element;
  const Element* source =
      static_cast<const Element*>(table.data) + packed_index(table.dtype, table.in_features, token, 0);
  for (int64_t k = 0; k < table.in_features; k += 16) {
    const int count = static_cast<int>(table.in_features - k < 16 ? table.in_features - k : 16);
    Element block[16] = {};
    for (int i = 0; i < count; ++i) block[i] = source[(k + i) * kPanelWidth];
    store_partial(output + k, mul(broadcast(scale), Table::widen(block)), count);
  }
}

}  // namespace

void embedding(const EmbeddingParams& params, ExecutionContext& context) {
  auto gather = [&](int64_t row, int) {
    float* output = params.output + row * params.table.in_features;
    const int64_t token = params.token_ids[row];
    if (params.table.dtype == DType::kBFloat16) {
      gather_row<StoredBFloat16>(params.table, token, params.scale, output);
    } else if (params.table.dtype == DType::kFloat16) {
      gather_row<StoredFloat16>(params.table, token, params.scale, output);
    } else {
      gather_row<StoredFloat32>(params.table, token, params.scale, output);
    }
  };
  context.pool.parallel_for(params.num_rows, gather);
}

}  // namespace eagle31rt::E31_ISA
