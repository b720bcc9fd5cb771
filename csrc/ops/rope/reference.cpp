#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

void rotate_head(const RopeParams& p, int64_t row, float* head) {
  const int32_t half = p.rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    float& x = p.interleaved ? head[2 * i] : head[i];
    float& y = p.interleaved ? head[2 * i + 1] : head[i + half];
    const double cosine = p.cosine[row * half + i], sine = p.sine[row * half + i];
    const double rotated_x = x * cosine - y * sine;
    const double rotated_y = y * cosine + x * sine;
    x = static_cast<float>(rotated_x);
    y = static_cast<float>(rotated_y);
  }
}

}  // namespace

void rope(const RopeParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    for (int32_t h = 0; h < p.num_heads; ++h) rotate_head(p, r, p.query + r * p.row_stride + h * p.head_dim);
    for (int32_t h = 0; h < p.num_kv_heads; ++h) rotate_head(p, r, p.key + r * p.row_stride + h * p.head_dim);
  }
}

}  // namespace eagle31rt::reference
