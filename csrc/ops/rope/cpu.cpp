#include "device/cpu/simd.h"
#include "ops/for_each_row.h"
#include "ops/rope/rope.h"

namespace eagle31rt::E31_ISA {

namespace {

// Rotates 16 pairs (x, y) in place.
void rotate(Lanes cosine, Lanes sine, Lanes& x, Lanes& y) {
  const Lanes rotated_x = multiply_add(x, cosine, sub(zero(), mul(y, sine)));
  y = multiply_add(y, cosine, mul(x, sine));
  x = rotated_x;
}

void rotate_halves(float* head, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    Lanes x = load(head + i), y = load(head + half + i);
    rotate(load(cosine + i), load(sine + i), x, y);
    store(head + i, x);
    store(head + half + i, y);
  }
  if (i < half) {
    const int rest = half - i;
    Lanes x = load_partial(head + i, rest), y = load_partial(head + half + i, rest);
    rotate(load_partial(cosine + i, rest), load_partial(sine + i, rest), x, y);
    store_partial(head + i, x, rest);
    store_partial(head + half + i, y, rest);
  }
}

void rotate_neighbours(float* head, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i += 16) {
    const int count = half - i < 16 ? half - i : 16;
    float even[16] = {}, odd[16] = {};
    for (int j = 0; j < count; ++j) {
      even[j] = head[2 * (i + j)];
      odd[j] = head[2 * (i + j) + 1];
    }
    Lanes x = load(even), y = load(odd);
    rotate(load_partial(cosine + i, count), load_partial(sine + i, count), x, y);
    store(even, x);
    store(odd, y);
    for (int j = 0; j < count; ++j) {
      head[2 * (i + j)] = even[j];
      head[2 * (i + j) + 1] = odd[j];
    }
  }
}

}  // namespace

void rope(const RopeParams& p, ExecutionContext& context) {
  const int half = p.rotary_dim / 2;
  const auto rotate_head = p.interleaved ? rotate_neighbours : rotate_halves;
  for_each_row(context, p.num_rows, int64_t{p.num_heads + p.num_kv_heads} * p.rotary_dim, [&](int64_t r) {
    const float* cosine = p.cosine + r * half;
    const float* sine = p.sine + r * half;
    for (int h = 0; h < p.num_heads; ++h) rotate_head(p.query + r * p.row_stride + h * p.head_dim, cosine, sine, half);
    for (int h = 0; h < p.num_kv_heads; ++h) rotate_head(p.key + r * p.row_stride + h * p.head_dim, cosine, sine, half);
  });
}

}  // namespace eagle31rt::E31_ISA
