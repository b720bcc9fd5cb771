#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

double clamped(double x, double low, double high) { return std::isnan(x) ? x : std::min(std::max(x, low), high); }

double activated(const SiluMulParams& p, double gate, double up) {
  if (p.activation == Activation::kSilu) return gate / (1.0 + std::exp(-gate)) * up;
  if (p.activation == Activation::kGeluTanh) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
    return 0.5 * gate * (1.0 + std::tanh(inner)) * up;
  }
  const double limit = p.limit;
  const double g = clamped(gate, -INFINITY, limit);
  return (clamped(up, -limit, limit) + 1.0) * (g / (1.0 + std::exp(-p.alpha * g)));
}

}  // namespace

void silu_mul(const SiluMulParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    const float* gate = p.input + r * 2 * p.intermediate_size;
    const float* up = gate + p.intermediate_size;
    for (int64_t i = 0; i < p.intermediate_size; ++i) {
      p.output[r * p.intermediate_size + i] = static_cast<float>(activated(p, gate[i], up[i]));
    }
  }
}

}  // namespace eagle31rt::reference
