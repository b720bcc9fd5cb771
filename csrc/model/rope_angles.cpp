#include "model/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace eagle31rt {
namespace {

using Frequencies = std::vector<double>;

Frequencies plain_frequencies(const RopeConfig& config) {
  Frequencies frequencies;
  for (int32_t i = 0; i < config.rotary_dim; i += 2) {
    frequencies.push_back(1.0 / std::pow(config.theta, static_cast<double>(i) / config.rotary_dim));
  }
  return frequencies;
}

// Long waves are stretched by the factor, short ones kept, those between blended.
void apply_llama3(const RopeConfig& config, Frequencies& frequencies) {
  const double length = config.original_max_position_embeddings;
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < length / config.high_freq_factor) continue;
    if (wavelength > length / config.low_freq_factor) {
      frequency /= config.factor;
      continue;
    }
    const double smooth =
        (length / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
    frequency = (1.0 - smooth) * frequency / config.factor + smooth * frequency;
  }
}

// Index of the frequency that turns `rotations` times within the original length.
double yarn_correction_index(const RopeConfig& config, double rotations) {
  return config.rotary_dim * std::log(config.original_max_position_embeddings / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(config.theta));
}

void apply_yarn(const RopeConfig& config, Frequencies& frequencies) {
  double low = yarn_correction_index(config, config.beta_fast);
  double high = yarn_correction_index(config, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.rotary_dim - 1));
  if (low == high) high += 0.001;  // as transformers: no division by zero
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / config.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  if (config.mscale != 0 && config.mscale_all_dim != 0) {
    return yarn_magnitude(config.factor, config.mscale) / yarn_magnitude(config.factor, config.mscale_all_dim);
  }
  return yarn_magnitude(config.factor, 1.0);
}

}  // namespace

RopeAngles::RopeAngles(const RopeConfig& config) : inverse_frequency_(plain_frequencies(config)) {
  switch (config.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      for (double& frequency : inverse_frequency_) frequency /= config.factor;
      break;
    case RopeKind::kLlama3:
      apply_llama3(config, inverse_frequency_);
      break;
    case RopeKind::kYarn:
      apply_yarn(config, inverse_frequency_);
      attention_factor_ = yarn_attention_factor(config);
      break;
  }
}

void RopeAngles::compute(const int32_t* positions, int64_t num_rows, float* cosine, float* sine) const {
  const int64_t half = half_dim();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = positions[row] * inverse_frequency_[static_cast<size_t>(i)];
      cosine[row * half + i] = static_cast<float>(std::cos(angle) * attention_factor_);
      sine[row * half + i] = static_cast<float>(std::sin(angle) * attention_factor_);
    }
  }
}

}  // namespace eagle31rt
