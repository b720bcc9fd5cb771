#include "spec/cost_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace eagle31rt {

namespace {

constexpr int32_t kSingleKnots = 16;  // knots 0 .. 15 are 1 .. 16 rows
constexpr double kSampleDeviation = 0.1;
constexpr int32_t kTrustedSamples = 3;  // of one or two each may be an outlier
constexpr double kUnmeasuredDeviation = 0.3;
constexpr double kMemory = 20;         // samples
constexpr int64_t kStaleSteps = 1000;  // a cell that was not seen for so long learns fast again
// Relative variance that a value gains a step without a sample, and an octave of context away from where it was taken.
constexpr double kVariancePerStep = 1e-6, kVariancePerContext = 0.003;

double squared(double value) { return value * value; }

struct Block {
  double weight, value;
  size_t count;
};

// The non-decreasing sequence that is nearest in weighted squares: neighbours that fall are pooled.
void make_monotone(std::vector<double>& values, const std::vector<double>& deviations) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < values.size(); ++i) {
    blocks.push_back({1 / squared(deviations[i]), values[i], 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].value > blocks.back().value) {
      const Block last = blocks.back();
      blocks.pop_back();
      Block& previous = blocks.back();
      previous.value = (previous.weight * previous.value + last.weight * last.value) / (previous.weight + last.weight);
      previous.weight += last.weight;
      previous.count += last.count;
    }
  }
  size_t next = 0;
  for (const Block& block : blocks) {
    for (size_t i = 0; i < block.count; ++i) values[next++] = block.value;
  }
}

int32_t knot_at_or_below(int64_t num_rows) {
  const int64_t rows = std::max<int64_t>(num_rows, 1);
  if (rows <= kSingleKnots) return static_cast<int32_t>(rows) - 1;
  const auto octave = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(rows))) - 1;  // 2^octave <= rows
  const auto step = static_cast<int32_t>((rows - (int64_t{1} << octave)) >> (octave - 3));
  return std::min(kSingleKnots - 1 + 8 * (octave - 4) + step, CostTable::kNumKnots - 1);
}

}  // namespace

double CostCurve::seconds(int64_t num_rows) const {
  if (empty()) return 0;
  const int32_t knot = std::min(knot_at_or_below(num_rows), CostTable::kNumKnots - 2);
  const auto i = static_cast<size_t>(knot);
  const auto low = static_cast<double>(CostTable::rows_of_knot(knot));
  const auto high = static_cast<double>(CostTable::rows_of_knot(knot + 1));
  return values_[i] + (values_[i + 1] - values_[i]) * (static_cast<double>(num_rows) - low) / (high - low);
}

double CostCurve::deviation(int64_t num_rows) const {
  return empty() ? 1 : deviations_[static_cast<size_t>(CostTable::nearest_knot(num_rows))];
}

int64_t CostTable::rows_of_knot(int32_t knot) {
  if (knot < kSingleKnots) return knot + 1;
  const int32_t octave = 4 + (knot - (kSingleKnots - 1)) / 8, step = (knot - (kSingleKnots - 1)) % 8;
  return (int64_t{1} << octave) + (int64_t{step} << (octave - 3));
}

int32_t CostTable::nearest_knot(int64_t num_rows) {
  const int32_t knot = knot_at_or_below(num_rows);
  if (knot + 1 >= kNumKnots) return knot;
  return num_rows - rows_of_knot(knot) <= rows_of_knot(knot + 1) - num_rows ? knot : knot + 1;
}

int32_t CostTable::context_bucket(int64_t context) {
  const auto width = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(context, 0)) / 512));
  return std::min(width, kNumContexts - 1);
}

void CostTable::add(int64_t num_rows, int64_t context, double seconds, int64_t now, const CostCurve& curve) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const int32_t knot = nearest_knot(num_rows), bucket = context_bucket(context);
  if (!curve.empty()) seconds *= curve.seconds(rows_of_knot(knot)) / curve.seconds(num_rows);
  Cell& cell = cells_[static_cast<size_t>(bucket)][static_cast<size_t>(knot)];
  measured_[static_cast<size_t>(knot)] |= 1u << bucket;
  const double sample = std::log(seconds);
  if (cell.num_samples < kFirstSamples) {
    cell.first[static_cast<size_t>(cell.num_samples++)] = sample;
    std::array<double, kFirstSamples> sorted = cell.first;
    std::sort(sorted.begin(), sorted.begin() + cell.num_samples);
    cell.log_seconds = sorted[static_cast<size_t>((cell.num_samples - 1) / 2)];  // of two the lower: noise only adds
  } else {
    if (now - cell.last > kStaleSteps) cell.num_samples = kFirstSamples;
    cell.num_samples += 1;
    const double surprise = std::clamp(sample - cell.log_seconds, -kLargestSurprise, kLargestSurprise);
    cell.log_seconds += surprise / std::min<double>(cell.num_samples, kMemory);
  }
  cell.last = now;
}

bool CostTable::find(int32_t knot, int32_t context, int64_t now, Known& known) const {
  const uint32_t measured = measured_[static_cast<size_t>(knot)];
  if (measured == 0) return false;
  const auto is_measured = [measured](int32_t bucket) {
    return bucket >= 0 && bucket < kNumContexts && (measured >> bucket & 1) != 0;
  };
  int32_t distance = 0;
  while (!is_measured(context - distance) && !is_measured(context + distance)) ++distance;
  const int32_t bucket = is_measured(context - distance) ? context - distance : context + distance;
  const Cell& found = cell(knot, bucket);
  known.seconds = std::exp(found.log_seconds);
  known.deviation =
      std::sqrt(squared(kSampleDeviation) / std::min<double>(found.num_samples, kMemory) +
                kVariancePerStep * static_cast<double>(now - found.last) + kVariancePerContext * squared(distance));
  if (found.num_samples < kTrustedSamples) known.deviation += kUnmeasuredDeviation;
  return true;
}

CostCurve CostTable::curve(int64_t context, int64_t now, const CostTable* other) const {
  const int32_t bucket = context_bucket(context);
  std::vector<int32_t> knots;
  std::vector<double> values, deviations;
  for (int32_t knot = 0; knot < kNumKnots; ++knot) {
    Known known;
    if (!find(knot, bucket, now, known)) {
      if (other == nullptr || !other->find(knot, bucket, now, known)) continue;
      known.deviation += kSampleDeviation;
    }
    knots.push_back(knot);
    values.push_back(known.seconds);
    deviations.push_back(known.deviation);
  }
  CostCurve curve;
  if (knots.empty()) return curve;
  make_monotone(values, deviations);
  curve.values_.resize(kNumKnots);
  curve.deviations_.resize(kNumKnots);
  for (int32_t knot = 0; knot < knots.front(); ++knot) {
    curve.values_[static_cast<size_t>(knot)] = values.front();
    curve.deviations_[static_cast<size_t>(knot)] = deviations.front() + kUnmeasuredDeviation;
  }
  for (size_t i = 0; i < knots.size(); ++i) {
    const bool is_last = i + 1 == knots.size();
    const auto rows = static_cast<double>(rows_of_knot(knots[i]));
    double slope = 0;
    if (!is_last) {
      slope = (values[i + 1] - values[i]) / (static_cast<double>(rows_of_knot(knots[i + 1])) - rows);
    } else {
      if (i > 0) slope = (values[i] - values[i - 1]) / (rows - static_cast<double>(rows_of_knot(knots[i - 1])));
      slope = std::max(slope, least_slope_ * values[i] / rows);
    }
    const int32_t end = is_last ? kNumKnots : knots[i + 1];
    for (int32_t knot = knots[i]; knot < end; ++knot) {
      const double distance = static_cast<double>(rows_of_knot(knot)) - rows;
      curve.values_[static_cast<size_t>(knot)] = values[i] + slope * distance;
      // Beyond the last knot the slope is a guess: a deviation less, and the pass costs what it does there.
      const double guessed = is_last ? std::log(1 + slope * distance / values[i]) : 0.0;
      const double between = !is_last && knot > knots[i] ? kSampleDeviation : 0.0;
      curve.deviations_[static_cast<size_t>(knot)] = deviations[i] + std::max(guessed, between);
    }
  }
  return curve;
}

int32_t CostTable::num_samples(int64_t num_rows, int64_t context) const {
  return cell(nearest_knot(num_rows), context_bucket(context)).num_samples;
}

}  // namespace eagle31rt
