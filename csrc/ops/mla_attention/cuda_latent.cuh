// The kernel of latent attention on matrix instructions: see cuda.cu.
#pragma once

#include "ops/paged_attention/cuda_tile.cuh"

namespace eagle31rt::cuda {

template <typename ElementType, int kKeyDimValue, int kValueDimValue, int kQueryWarps, int kColumnWarps>
struct LatentTraits {
  using Element = ElementType;
  static constexpr int kKeyDim = kKeyDimValue;  // latent_dim + rope_dim, rounded up
  static constexpr int kValueDim = kValueDimValue;
  static constexpr int kStride = kKeyDim + 8;  // of rows in shared memory: eight rows hit different banks
  static constexpr int kRowWarps = kQueryWarps;
  static constexpr int kSplitWarps = kColumnWarps;
  static constexpr int kQueries = 16 * kRowWarps;
  static constexpr int kThreads = kWarpSize * kRowWarps * kSplitWarps;
  static constexpr int kHalf = kAttentionSplit / 2;  // positions that are loaded together
  static constexpr int kSlots = 3;                   // halves: a split in use, one on its way
  static constexpr int kScoreStride = kAttentionSplit + 8;
  static constexpr int kScoreTilesPerWarp = kScoreTiles / kSplitWarps;
  static constexpr int kDimsPerWarp = kValueDim / kSplitWarps;
  static_assert(kDimsPerWarp % 16 == 0 && kThreads >= kAttentionSplit);
};

template <typename Traits>
struct LatentMemory {
  alignas(16) typename Traits::Element query[Traits::kQueries * Traits::kStride];
  alignas(16) typename Traits::Element ring[Traits::kSlots][Traits::kHalf * Traits::kStride];
  alignas(16) float score[Traits::kQueries * Traits::kScoreStride];
  int64_t offset[2][kAttentionSplit];  // of the entries of even and odd units
  BlockWork<Traits::kQueries> work;
};

// The block's latent entries: tiles 2 u and 2 u + 1 are the halves of unit u, keys first and values after.
template <typename Traits>
struct LatentRing {
  using Element = typename Traits::Element;

  const AttentionProblem& problem;
  LatentMemory<Traits>& shared;

  // Finds the entries of a unit. A barrier must follow before they are loaded.
  E31_DEVICE void prepare(int unit) { shared.work.find_entries(problem, unit, shared.offset[unit % 2]); }

  E31_DEVICE void load(int number) {
    if (number < 2 * shared.work.units.count()) {
      copy_entries<Traits::kThreads, Traits::kHalf, Traits::kKeyDim, Traits::kStride>(
          static_cast<const Element*>(problem.key), shared.offset[number / 2 % 2] + number % 2 * Traits::kHalf,
          problem.key_dim, slot(number));
    }
    cp_async_commit();
  }

  E31_DEVICE void start() {
    prepare(0);
    prepare(1);
    __syncthreads();
#pragma unroll
    for (int number = 0; number < Traits::kSlots; ++number) load(number);
  }

  E31_DEVICE Element* slot(int number) { return shared.ring[number % Traits::kSlots]; }
};

template <typename Traits>
struct LatentBlock {
  using Element = typename Traits::Element;

  const AttentionProblem& problem;
  LatentMemory<Traits>& shared;
  LatentRing<Traits>& ring;
  WarpQueries<Traits::kDimsPerWarp>& queries;
  int first_place;  // of the positions whose scores this warp computes

  E31_DEVICE void score(int unit) {
    float own_score[Traits::kScoreTilesPerWarp][4] = {};
    const int half = first_place / Traits::kHalf;
    score_tiles<Traits::kKeyDim>(shared.query + queries.places.first * Traits::kStride,
                                 ring.slot(2 * unit + half) + first_place % Traits::kHalf * Traits::kStride,
                                 Traits::kStride, own_score);
    share_scores<Traits::kScoreStride>(own_score,
                                       shared.score + queries.places.first * Traits::kScoreStride + first_place);
  }

  template <int kHalfNumber, typename Scores>
  E31_DEVICE void weigh_half(int unit, const Weights<Element, Scores>& weights) {
    constexpr int kSteps = kPositionSteps / 2;
    weigh_values<Traits::kDimsPerWarp, kHalfNumber * kSteps, kSteps>(
        problem, shared.work, unit, weights, ring.slot(2 * unit + kHalfNumber) + queries.first_dim, Traits::kStride,
        queries.places, queries.state);
  }

  E31_DEVICE void attend(int unit) {
    const bool takes_part = queries.takes_part(shared.work.tile, shared.work.units.row(unit));
    cp_async_wait<1>();  // all but the half of the next unit
    __syncthreads();
    ring.prepare(unit + 2);
    if (takes_part) score(unit);
    __syncthreads();
    const SharedScores<Traits::kScoreStride> scores(shared.score + queries.places.first * Traits::kScoreStride);
    Weights<Element, SharedScores<Traits::kScoreStride>> weights{scores, {}, {}};
    if (takes_part) {
      weights = queries.template weigh_unit<Element>(problem, shared.work, unit, scores);
      weigh_half<0>(unit, weights);
    }
    __syncthreads();
    ring.load(2 * unit + 3);
    if (takes_part) weigh_half<1>(unit, weights);
    __syncthreads();
    ring.load(2 * unit + 4);
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    latent_attention_kernel(const AttentionProblem given, const AttentionTiling tiling) {
  AttentionProblem problem = given;  // said here, the compiler drops what windows and sinks need: 24 bytes of spills
  problem.sinks = nullptr;
  problem.sliding_window = 0;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  LatentMemory<Traits>& shared = *reinterpret_cast<LatentMemory<Traits>*>(shared_bytes);
  if (!shared.work.find(problem, tiling)) return;
  LatentRing<Traits> ring{problem, shared};
  ring.start();
  load_queries<Traits::kThreads, Traits::kQueries, Traits::kKeyDim, Traits::kStride>(problem, shared.work.tile,
                                                                                     shared.query);
  clear_padding<Traits::kThreads, Traits::kKeyDim, Traits::kStride>(shared.ring[0], Traits::kSlots * Traits::kHalf,
                                                                    problem.key_dim);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int column = warp % Traits::kSplitWarps, first_query = warp / Traits::kSplitWarps * 16;
  WarpQueries<Traits::kDimsPerWarp> queries(shared.work.tile, first_query, column * Traits::kDimsPerWarp);
  LatentBlock<Traits> block{problem, shared, ring, queries, column * Traits::kScoreTilesPerWarp * 8};
  attend_units(problem, tiling, shared.work, block, queries);
  cp_async_wait<0>();
}

}  // namespace eagle31rt::cuda
