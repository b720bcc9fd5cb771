// What a pass costs by its number of rows and by the KV entries that it reads, learned from noisy measurements.
//
// Rows are grouped around knots (1, 2, ... 16, then eight to an octave), contexts in octaves. A cell's value is the
// median of its first five samples, later a mean with a memory of about twenty in which a single sample counts at most
// kLargestSurprise: shared machines give samples of twice the usual time. A curve is what the cells say about one
// context: never falling with the number of rows, linear between measured knots, beyond them steeper than it was last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle31rt {

class CostCurve {
 public:
  bool empty() const { return values_.empty(); }
  // Seconds of a pass over `num_rows` >= 1 rows; of an empty curve 0.
  double seconds(int64_t num_rows) const;
  // Relative standard deviation of that.
  double deviation(int64_t num_rows) const;

 private:
  friend class CostTable;
  std::vector<double> values_, deviations_;  // by knot
};

class CostTable {
 public:
  static constexpr int32_t kNumKnots = 16 + 8 * 10;
  static constexpr int32_t kNumContexts = 16;
  static constexpr double kLargestSurprise = 0.2;

  // Beyond the measured rows a row costs at least this share of an average row there.
  explicit CostTable(double least_slope) : least_slope_(least_slope) {}

  static int64_t rows_of_knot(int32_t knot);
  static int32_t nearest_knot(int64_t num_rows);
  static int32_t context_bucket(int64_t context);

  // A sample at step `now`. It counts for the nearest knot, scaled along `curve`, which is this table's at `context`.
  void add(int64_t num_rows, int64_t context, double seconds, int64_t now, const CostCurve& curve);
  // What is not measured at `context` is taken from the nearest context that is, else from `other` (may be null).
  CostCurve curve(int64_t context, int64_t now, const CostTable* other = nullptr) const;
  // Samples near (num_rows, context).
  int32_t num_samples(int64_t num_rows, int64_t context) const;

 private:
  static constexpr int32_t kFirstSamples = 5;
  struct Cell {
    int32_t num_samples = 0;
    int64_t last = -1;
    double log_seconds = 0;
    std::array<double, kFirstSamples> first{};
  };
  struct Known {
    double seconds = 0, deviation = 0;
  };

  const Cell& cell(int32_t knot, int32_t context) const {
    return cells_[static_cast<size_t>(context)][static_cast<size_t>(knot)];
  }
  bool find(int32_t knot, int32_t context, int64_t now, Known& known) const;

  double least_slope_;
  std::array<std::array<Cell, kNumKnots>, kNumContexts> cells_{};
  std::array<uint32_t, kNumKnots> measured_{};  // a bit for each context
};

}  // namespace eagle31rt
