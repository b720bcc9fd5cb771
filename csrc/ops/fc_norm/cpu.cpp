#include "device/execution_context.h"
#include "ops/fc_norm/fc_norm.h"
#include "ops/linear/multiply.h"
#include "ops/rms_norm/row_norm.h"

namespace eagle31rt::E31_ISA {

namespace {

// Normalises a block of rows straight into the layout of the panel kernel, a piece at a time.
void lay_out_normed(const FcNormParams& params, int64_t first_row, int64_t num_rows, float* packed) {
  const int64_t in_features = params.chunk_size * params.num_chunks;
  const int64_t norm_size = params.mode == FcNormMode::kWhole ? in_features : params.chunk_size;
  constexpr int64_t kPieceSize = 64;
  float piece[kPieceSize];
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* row = params.captured + (first_row + r) * in_features;
    for (int64_t chunk = 0; chunk < in_features; chunk += norm_size) {
      const float inverse = inverse_rms(row + chunk, norm_size, params.epsilon);
      for (int64_t i = 0; i < norm_size; i += kPieceSize) {
        const int64_t count = norm_size - i < kPieceSize ? norm_size - i : kPieceSize;
        scale_row(row + chunk + i, inverse, params.norm_weight + chunk + i, piece, count);
        for (int64_t j = 0; j < count; ++j) packed[(chunk + i + j) * num_rows + r] = piece[j];
      }
    }
  }
}

}  // namespace

void fc_norm(const FcNormParams& params, ExecutionContext& context) {
  const int64_t in_features = params.chunk_size * params.num_chunks;
  const Product product = {params.weight, params.bias,     nullptr,
                           params.output, params.num_rows, params.weight.out_features};
  multiply(product, context.pool, [&](int64_t first_row, int64_t num_rows, float* destination) {
    if (params.mode == FcNormMode::kNone) {
      pack_rows(params.captured + first_row * in_features, in_features, num_rows, in_features, destination);
    } else {
      lay_out_normed(params, first_row, num_rows, destination);
    }
  });
}

}  // namespace eagle31rt::E31_ISA
