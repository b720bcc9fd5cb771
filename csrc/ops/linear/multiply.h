// The loops of linear and fc_norm around the panel kernel: rows in groups that fit the cache, panels shared out to
// threads.
//
// One row or a few: the time is that of streaming the weights from memory once, so a thread takes runs of panels that
// lie next to each other. Many rows: the time is that of the multiplications, so a group of rows is laid out once and
// each panel, widened from the second-level cache, meets all of the group before the next panel is touched.
#pragma once

#include <cstdint>

#include "device/cpu/thread_pool.h"
#include "ops/linear/pack_rows.h"
#include "ops/linear/panel_codes.h"
#include "ops/linear/panel_kernel.h"
#include "ops/linear/row_groups.h"
#include "ops/linear/scratch.h"

namespace eagle31rt::E31_ISA {

struct Product {
  PackedWeightView weight;
  const float* bias;      // [out_features] or null
  const float* residual;  // [num_rows, output_stride] or null
  float* output;          // [num_rows, output_stride]
  int64_t num_rows;
  int64_t output_stride;
};

constexpr int64_t kMaxGroupRows = kMaxGroupBlocks * kMaxBlockRows;
// Weights of so many input features (8 KiB in 16 bits) stay in the first-level cache while all rows of a group pass.
constexpr int64_t kBlockFeatures = 128;
// How far ahead of a single pass over the weights to fetch, in bytes: one core draws about 20 bytes a nanosecond and a
// line takes 100-200 ns to arrive; 2048 was 10 % slower, 8192 no faster.
constexpr int64_t kPrefetchBytes = 4096;
// Fewer multiplications than this run on the calling thread: waking the others would take longer.
constexpr int64_t kSerialMultiplications = 65536;

// Balanced split: part i of n covers [begin(i), begin(i + 1)).
inline int64_t part_begin(int64_t total, int64_t parts, int64_t i) { return total * i / parts; }

// output = tile (+ bias) (+ residual). Never inlined: the same additions for every block of rows.
__attribute__((noinline)) inline void finish_rows(const Product& product, const float* tile, int64_t first_row,
                                                  int64_t num_rows, int64_t panel) {
  const int64_t column = panel * kPanelWidth;
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t offset = (first_row + r) * product.output_stride + column;
    for (int64_t half = 0; half < kPanelWidth; half += 16) {
      const int64_t rest = product.weight.out_features - column - half;
      if (rest <= 0) break;
      const int lanes = static_cast<int>(rest < 16 ? rest : 16);
      Lanes value = load(tile + r * kPanelWidth + half);
      if (product.bias != nullptr) value = add(value, load_partial(product.bias + column + half, lanes));
      if (product.residual != nullptr) value = add(value, load_partial(product.residual + offset + half, lanes));
      store_partial(product.output + offset + half, value, lanes);
    }
  }
}

// A group of rows, laid out block after block in `input`.
struct RowGroup {
  int64_t first_row;
  int64_t num_rows;
  int64_t num_blocks;
  const float* input;
};

// One after the other, the blocks of features of a panel as the panel kernel reads them.
class PanelReader {
 public:
  // single_pass: each weight is read once, for few rows.
  PanelReader(const PackedWeightView& weight, int64_t panel, bool single_pass)
      : weight_(weight),
        single_pass_(single_pass),
        row_bytes_(kPanelWidth * dtype_size(weight.dtype)),
        block_features_(single_pass && !weight.form.is_quantised() ? weight.in_features : kBlockFeatures) {
    const int64_t bytes = weight.form.is_quantised() ? weight.panel_bytes() : weight.in_features * row_bytes_;
    panel_ = static_cast<const char*>(weight.data) + panel * bytes;
  }

  int64_t block_features() const { return block_features_; }

  struct Block {
    const char* weights;
    const char* prefetch;  // what to fetch meanwhile, num_k * prefetch_row_bytes
    int64_t prefetch_row_bytes;
  };
  Block block(int64_t k, int64_t num_k) {
    if (weight_.form.is_quantised()) {
      choose_dequantise(weight_)(weight_, reinterpret_cast<const uint8_t*>(panel_), {k, num_k, kPrefetchBytes}, plain_);
      return {plain_, plain_, 0};
    }
    const char* weights = panel_ + k * row_bytes_;
    return {weights, weights + (single_pass_ ? kPrefetchBytes : num_k * row_bytes_), row_bytes_};
  }

 private:
  const PackedWeightView& weight_;
  bool single_pass_;
  int64_t row_bytes_;
  int64_t block_features_;
  const char* panel_;
  alignas(64) char plain_[kBlockFeatures * kPanelWidth * sizeof(float)];  // quantised weights, widened
};

inline void multiply_group_panel(const Product& product, const RowGroup& group, int64_t panel) {
  alignas(64) float tile[kMaxGroupRows * kPanelWidth];
  const int64_t in_features = product.weight.in_features;
  int64_t passes = 0;
  for (int64_t b = 0; b < group.num_blocks; ++b) {
    passes += num_passes(static_cast<int>(part_begin(group.num_rows, group.num_blocks, b + 1) -
                                          part_begin(group.num_rows, group.num_blocks, b)));
  }
  PanelReader reader(product.weight, panel, passes == 1);
  for (int64_t k = 0; k < in_features; k += reader.block_features()) {
    const int64_t rest = in_features - k;
    const int64_t num_k = rest < reader.block_features() ? rest : reader.block_features();
    const PanelReader::Block block = reader.block(k, num_k);
    const char* prefetch = block.prefetch;
    for (int64_t b = 0; b < group.num_blocks; ++b) {
      const int64_t first = part_begin(group.num_rows, group.num_blocks, b);
      const int rows = static_cast<int>(part_begin(group.num_rows, group.num_blocks, b + 1) - first);
      const float* input = group.input + first * in_features + k * rows;
      const int64_t step = block.prefetch_row_bytes / passes;
      panel_kernel(product.weight.dtype,
                   rows)({input, block.weights, num_k, tile + first * kPanelWidth, k > 0, prefetch, step});
      prefetch += num_passes(rows) * num_k * step;
    }
  }
  finish_rows(product, tile, group.first_row, group.num_rows, panel);
}

// Takes the next run of panels, longer while much is left, from the counter that the threads share. Item i is panel
// i % num_panels of group i / num_panels; a run stays inside one group. Returns its length, 0 at the end.
inline int64_t take_items(int64_t* next, int64_t num_items, int64_t num_panels, int num_threads, int64_t& first) {
  first = __atomic_load_n(next, __ATOMIC_RELAXED);
  while (first < num_items) {
    int64_t count = (num_items - first) / (2 * num_threads);
    const int64_t rest_of_group = num_panels - first % num_panels;
    count = count < 1 ? 1 : count > rest_of_group ? rest_of_group : count;
    if (__atomic_compare_exchange_n(next, &first, first + count, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return count;
  }
  return 0;
}

// Several products of one shape of weight in one go, each with its own rows. product(i): product i of num_products;
// lay_out(i, first_row, num_rows, destination) writes a block of its input rows as [in_features, num_rows].
template <typename ProductOf, typename LayOut>
void multiply_each(int64_t num_products, ThreadPool& pool, const ProductOf& product_of, const LayOut& lay_out) {
  int64_t num_rows = 0, num_used = 0;
  for (int64_t i = 0; i < num_products; ++i) {
    num_rows += product_of(i).num_rows;
    num_used += product_of(i).num_rows > 0;
  }
  const PackedWeightView weight = product_of(0).weight;
  const int64_t in_features = weight.in_features, num_panels = weight.num_panels();
  if (num_rows == 0 || num_panels == 0) return;
  const bool serial = num_rows * num_panels * kPanelWidth * in_features < kSerialMultiplications;
  const int num_threads = serial ? 1 : pool.num_threads();
  const RowGroups groups = {kMaxBlockRows, in_features, num_panels * num_used, num_threads};
  int64_t num_groups = 0, group_rows = 0;
  for (int64_t i = 0; i < num_products; ++i) {
    const int64_t rows = product_of(i).num_rows, count = num_row_groups(groups, rows);
    num_groups += count;
    if (count > 0 && (rows + count - 1) / count > group_rows) group_rows = (rows + count - 1) / count;
  }
  float* scratch = linear_scratch(num_threads * group_rows * in_features);
  alignas(64) int64_t next = 0;
  auto work = [&](int64_t, int thread) {
    float* input = scratch + thread * group_rows * in_features;
    int64_t current = -1;
    Product product{};
    RowGroup group{};
    int64_t first;
    while (const int64_t count = take_items(&next, num_groups * num_panels, num_panels, num_threads, first)) {
      if (first / num_panels != current) {
        current = first / num_panels;
        int64_t i = 0, of_product = current;  // the group's product, and its number there
        for (; of_product >= num_row_groups(groups, product_of(i).num_rows); ++i) {
          of_product -= num_row_groups(groups, product_of(i).num_rows);
        }
        product = product_of(i);
        const int64_t parts = num_row_groups(groups, product.num_rows);
        const int64_t begin = part_begin(product.num_rows, parts, of_product);
        const int64_t rows = part_begin(product.num_rows, parts, of_product + 1) - begin;
        group = {begin, rows, (rows + kMaxBlockRows - 1) / kMaxBlockRows, input};
        for (int64_t b = 0; b < group.num_blocks; ++b) {
          const int64_t block = part_begin(rows, group.num_blocks, b);
          const int64_t block_rows = part_begin(rows, group.num_blocks, b + 1) - block;
          lay_out(i, begin + block, block_rows, input + block * in_features);
        }
      }
      for (int64_t panel = 0; panel < count; ++panel) {
        multiply_group_panel(product, group, first % num_panels + panel);
      }
    }
  };
  pool.parallel_for(num_threads, work);
}

// lay_out(first_row, num_rows, destination) writes a block of input rows as [in_features, num_rows].
template <typename LayOut>
void multiply(const Product& product, ThreadPool& pool, const LayOut& lay_out) {
  multiply_each(
      1, pool, [&](int64_t) { return product; },
      [&](int64_t, int64_t first_row, int64_t num_rows, float* destination) {
        lay_out(first_row, num_rows, destination);
      });
}

}  // namespace eagle31rt::E31_ISA
