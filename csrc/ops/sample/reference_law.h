// The law of sample.h, spelled out: all weights of a row, by a full sort.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sample/sample.h"

namespace eagle31rt::reference {

// Weight of every id after the mask and the filters; all 0 if no id has a logit above -inf.
std::vector<uint64_t> row_weights(std::span<const float> logits, const SamplingRow& row,
                                  std::span<const int32_t> masked_ids);

// Weights of row r of params, its mask applied.
std::vector<uint64_t> row_weights(const SampleParams& params, int64_t r);

uint64_t sum(const std::vector<uint64_t>& weights);

// The first id whose cumulative weight exceeds floor(bits * total / 2^64); -1 if all weights are 0.
int32_t draw(const std::vector<uint64_t>& weights, uint64_t bits);

}  // namespace eagle31rt::reference
