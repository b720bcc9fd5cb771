#include <cmath>
#include <limits>
#include <map>

#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double add_bias(double logit, double bias) { return logit == -kInfinity ? logit : logit + bias; }

double penalize(const ProcessRow& row, int count, double logit) {
  if (logit == -kInfinity) return logit;
  const double repetition = row.repetition_penalty;
  logit = logit > 0 ? logit / repetition : logit * repetition;
  return logit - double{row.frequency_penalty} * count - (count > 0 ? row.presence_penalty : 0.0f);
}

void process_row(const ProcessLogitsParams& p, const ProcessRow& row, float* logits) {
  std::map<int32_t, double> biases;
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) biases[p.biases[i].token_id] = p.biases[i].bias;
  std::map<int32_t, int> counts;  // of every id that was seen
  for (int32_t i = row.history_begin; i < row.history_end; ++i) {
    const TokenCount& token = p.history[i];
    if (token.in_prompt != 0 || token.num_output > 0) counts[token.token_id] = token.num_output;
  }
  for (int32_t i = row.path_begin; i < row.path_end; ++i) ++counts[p.path_ids[i]];

  for (int32_t id = 0; id < p.vocab_size; ++id) {
    double logit = logits[id];
    if (row.mask_begin >= 0 && (p.masks[row.mask_begin + id / 32] >> (id % 32) & 1u) == 0) logit = -kInfinity;
    if (biases.contains(id)) logit = add_bias(logit, biases[id]);
    if (counts.contains(id)) logit = penalize(row, counts[id], logit);
    logits[id] = static_cast<float>(logit);
  }
}

}  // namespace

void process_logits(const ProcessLogitsParams& p) {
  for (int64_t i = 0; i < p.num_rows; ++i) process_row(p, p.rows[i], p.logits + p.row_indices[i] * p.logits_stride);
}

}  // namespace eagle31rt::reference
