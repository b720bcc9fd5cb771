#include "device/cpu/simd.h"
#include "ops/for_each_row.h"
#include "ops/silu_mul/silu_mul.h"

namespace eagle31rt::E31_ISA {

namespace {

struct Silu {
  Lanes operator()(Lanes gate, Lanes up) const {
    return mul(div(gate, add(broadcast(1.0f), exp(sub(zero(), gate)))), up);
  }
};

struct GeluTanh {
  Lanes operator()(Lanes gate, Lanes up) const {
    const Lanes factor = add(broadcast(kGeluLinear), mul(broadcast(kGeluCubic), mul(gate, gate)));
    return mul(div(gate, add(broadcast(1.0f), exp(sub(zero(), mul(gate, factor))))), up);
  }
};

struct ClampedSwiglu {
  float alpha, limit;

  Lanes operator()(Lanes gate, Lanes up) const {
    const Lanes high = broadcast(limit), low = broadcast(-limit);
    gate = select(less(high, gate), high, gate);
    up = select(less(high, up), high, select(less(up, low), low, up));
    const Lanes scaled = mul(broadcast(alpha), gate);
    return mul(add(up, broadcast(1.0f)), div(gate, add(broadcast(1.0f), exp(sub(zero(), scaled)))));
  }
};

template <typename Activate>
void run(const SiluMulParams& p, const Activate& activate, ExecutionContext& context) {
  const int64_t n = p.intermediate_size;
  // The exponential and the division make an element about 4 times as dear as in a plain pass.
  for_each_row(context, p.num_rows, 4 * n, [&](int64_t r) {
    const float* gate = p.input + r * 2 * n;
    const float* up = gate + n;
    float* output = p.output + r * n;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(output + i, activate(load(gate + i), load(up + i)));
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      store_partial(output + i, activate(load_partial(gate + i, rest), load_partial(up + i, rest)), rest);
    }
  });
}

}  // namespace

void silu_mul(const SiluMulParams& p, ExecutionContext& context) {
  if (p.activation == Activation::kSilu) return run(p, Silu{}, context);
  if (p.activation == Activation::kGeluTanh) return run(p, GeluTanh{}, context);
  run(p, ClampedSwiglu{p.alpha, p.limit}, context);
}

}  // namespace eagle31rt::E31_ISA
