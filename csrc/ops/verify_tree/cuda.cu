// Verification of all trees of a batch, whatever their shapes: a fixed number of launches, no number on the host.
//
//   kEquality, few rows    sample  one block a row: the plain sample of every row (sample/cuda.cu)
//                          walk    one warp a request
//   kEquality, many rows   walk    one block a request, which samples a row when it gets there (config.h)
//   kStandard              invert  target id -> draft id, if the draft has a vocabulary of its own
//                          walk    one block a request: q, p, coins, residuals
//
// What costs is passes over logits (sample/row_law.cuh), 1 for a greedy row and 2 for a sampled one; kStandard makes 2
// over q as well, and one over both for each child that it refuses, in which every refusal so far is worked out again
// id by id: storing the residual would cost more bytes than both laws. Links and tokens of a request lie in shared
// memory, where following one costs 30 cycles rather than 500.
//
// 32 requests of 64 rows, 128256 ids, 4 rows on each path. All rows are 1.05 GB: 0.53 ms on an A100, 0.31 ms on an
// H100, 0.22 ms on an H200, 0.13 ms on a B200. The rows of the paths are 66 MB, 33, 20, 14 and 8 us, but a block reads
// its row alone, at about 90 GB/s: 4 rows one after the other are 24 us greedy and 150 us sampled (32 us of arithmetic
// a row). One request of 64 rows has a multiprocessor for each row: sampling all takes 38 us, walking first 150 us.
#include <algorithm>

#include "device/cuda/launch.h"
#include "ops/build_tree/build_tree.h"
#include "ops/sample/config.h"
#include "ops/sample/cuda_rows.h"
#include "ops/sample/selection.cuh"
#include "ops/verify_chain/cuda_draft_map.h"
#include "ops/verify_chain/draft_law.cuh"
#include "ops/verify_tree/config.h"
#include "ops/verify_tree/sibling_rules.h"
#include "ops/verify_tree/tree_walk.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kRatioThreads = 512;  // 96 registers; within the 64 of 1024 threads some architectures spill

// Links and tokens of one request; larger trees are read where they are.
struct CachedTree {
  int32_t token_ids[kMaxTreeRows], first_child[kMaxTreeRows], next_sibling[kMaxTreeRows];
};

// 46 KiB.
struct WalkShared {
  LawShared law;
  CachedTree tree;
  // kStandard. The laws of the row stand here rather than in the registers of every thread.
  RowLaw p;
  DraftLaw q;  // inverse_total 1, so that its probabilities are weights; an empty law for point masses
  Siblings siblings;
  double coins[kMaxTriedSiblings];
  uint64_t emission_bits;
  rules::Trial refused[kMaxTriedSiblings];
  double inverse_rest[kMaxTriedSiblings + 1];  // of p, then of what each refusal left
  uint64_t draft_total;                        // of what the siblings tried so far left of q
  bool stands;
};

struct Scratch {
  uint32_t* mask_words;            // [num_requests, num_mask_words]
  const int32_t* target_to_draft;  // [vocab_size] or null
};

struct Step {
  int32_t child;  // -1: the walk ends, with `token`
  int32_t token;
};

// All threads of the block; `tree` is read from `copy` from then on, unless it does not fit.
E31_DEVICE void cache_links(Tree& tree, CachedTree& copy) {
  if (tree.num_rows > kMaxTreeRows) return;
  for (int32_t r = static_cast<int32_t>(threadIdx.x); r < tree.num_rows; r += blockDim.x) {
    copy.token_ids[r] = tree.token_ids[r];
    copy.first_child[r] = tree.first_child[r];
    copy.next_sibling[r] = tree.next_sibling[r];
  }
  __syncthreads();
  tree.token_ids = copy.token_ids;
  tree.first_child = copy.first_child;
  tree.next_sibling = copy.next_sibling;
}

// r as the refused children left it, for sum_segments and draw_id; the weights of p as long as nothing was refused.
struct Residual {
  const WalkShared& shared;
  RowLogits logits;
  int32_t num_refused;

  E31_DEVICE double share(uint64_t weight, int32_t refusals) const {
    const double inverse = shared.inverse_rest[refusals];
    return refusals == 0 ? rules::probability(weight, inverse) : rules::residual_share(weight, inverse);
  }
  E31_DEVICE uint64_t operator()(int32_t id) const {
    uint64_t weight = weight_of(shared.p, logits, id);
    if (weight == 0 || num_refused == 0) return weight;  // 0 - q is not above 0
    double draft_weight = shared.q.probability(id);
#pragma unroll 1
    for (int32_t n = 0; n < num_refused; ++n) {
      const rules::Trial& trial = shared.refused[n];
      const double q_share = rules::draft_share(trial, id, draft_weight);
      weight = rules::residual_weight(rules::residual(1.0, share(weight, n), q_share));
      if (id == trial.token_id) draft_weight = 0.0;
    }
    return weight;
  }
};

// The law that drew the children of `row`, as Residual wants it.
E31_DEVICE DraftLaw draft_law(const Tree& tree, int32_t row, const Scratch& scratch, WalkShared& shared) {
  const VerifyTreeParams& params = tree.params;
  DraftLaw q = {};
  q.law.point_id = q.point_id = -1;
  q.inverse_total = 1.0;
  const int64_t draft_row = draft_row_of(tree, row);
  if (draft_row < 0) return q;
  const RowLogits logits = {params.draft_logits + draft_row * params.draft_logits_stride, nullptr};
  const SamplingRow plain = {params.target.rows[tree.first_row + row].temperature, 0, 1.0f, 0.0f, 0, 0};
  const RowLaw law = make_law(logits, static_cast<int32_t>(params.draft_vocab_size), plain, shared.law);
  if (law.total == 0 || law.point_id >= 0) return q;
  q.law = law;
  q.logits = logits;
  q.to_draft = scratch.target_to_draft;
  q.vocab_size = static_cast<int32_t>(params.draft_vocab_size);
  return q;
}

E31_DEVICE RowLogits target_logits(const Tree& tree, int32_t row, int64_t request, const Scratch& scratch) {
  const SampleParams& target = tree.params.target;
  uint32_t* words = scratch.mask_words + request * num_mask_words(target.vocab_size);
  return row_logits(target, tree.first_row + row, words, true);
}

E31_DEVICE Step step_by_equality(const Tree& tree, int32_t row, int64_t request, const Scratch& scratch,
                                 WalkShared& shared) {
  const int32_t vocab_size = static_cast<int32_t>(tree.params.target.vocab_size);
  const RowLogits logits = target_logits(tree, row, request, scratch);
  const RowLaw p = make_law(logits, vocab_size, tree.params.target.rows[tree.first_row + row], shared.law);
  const int32_t token =
      draw_from_law(p, logits, vocab_size, shared.law.masses, plain_bits(tree, row), shared.law.warp_values);
  return {token < 0 ? -1 : find_child(tree, row, token), token};
}

// Whether child i of the siblings stands; if not, notes what its refusal takes. One thread.
E31_DEVICE bool try_child(const Tree& tree, int32_t i, const Residual& r, WalkShared& shared) {
  const int32_t x = tree.token_ids[shared.siblings.rows[i]];
  const rules::Trial trial = {rules::inverse_total(shared.draft_total), x};
  const double draft_weight = shared.q.probability(x);
  const double acceptance = rules::acceptance_ratio(1.0, r.share(r(x), i), rules::draft_share(trial, x, draft_weight));
  shared.refused[i] = trial;
  shared.draft_total -= static_cast<uint64_t>(draft_weight);
  return rules::stands(shared.coins[i], acceptance);
}

// Leaves the laws of the row and the children that it tries in shared memory.
E31_DEVICE RowLogits enter_row(const Tree& tree, int32_t row, int64_t request, const Scratch& scratch,
                               WalkShared& shared) {
  __syncthreads();  // the step before may still read the siblings
  if (threadIdx.x == 0) {
    find_siblings(tree, row, &shared.siblings);
    shared.emission_bits = emission_bits(tree, row);
  }
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < shared.siblings.count; i += blockDim.x) {
    shared.coins[i] = child_coin(tree, row, shared.siblings.rows[i]);
  }
  DraftLaw q = {};
  if (shared.siblings.count > 0) q = draft_law(tree, row, scratch, shared);
  if (threadIdx.x == 0) {
    shared.q = q;
    shared.draft_total = q.law.total;
  }
  const SampleParams& target = tree.params.target;
  const RowLogits logits = target_logits(tree, row, request, scratch);
  const RowLaw p =
      make_law(logits, static_cast<int32_t>(target.vocab_size), target.rows[tree.first_row + row], shared.law);
  if (threadIdx.x == 0) {
    shared.p = p;
    shared.inverse_rest[0] = rules::inverse_total(p.total);
  }
  __syncthreads();
  return logits;
}

E31_DEVICE Step step_by_ratio(const Tree& tree, int32_t row, int64_t request, const Scratch& scratch,
                              WalkShared& shared) {
  Residual r = {shared, enter_row(tree, row, request, scratch, shared), 0};
  const int32_t vocab_size = static_cast<int32_t>(tree.params.target.vocab_size);
  const RowLaw& p = shared.p;
  uint64_t total = p.total;
#pragma unroll 1
  while (r.num_refused < shared.siblings.count && total > 0) {
    if (threadIdx.x == 0) shared.stands = try_child(tree, r.num_refused, r, shared);
    __syncthreads();
    if (shared.stands) return {shared.siblings.rows[r.num_refused], -1};
    ++r.num_refused;
    total = sum_segments(r, vocab_size, shared.law.masses);
    if (threadIdx.x == 0) shared.inverse_rest[r.num_refused] = rules::inverse_total(total);
  }
  if (total == 0) r.num_refused = 0;  // p, if anything is left of it: its masses were overwritten
  if (r.num_refused == 0 && (p.total == 0 || p.point_id >= 0)) return {-1, p.point_id};
  if (total == 0) total = sum_segments(r, vocab_size, shared.law.masses);
  return {-1, draw_id(r, vocab_size, shared.law.masses, total, shared.emission_bits, shared.law.warp_values)};
}

template <TreeVerifyMethod kMethod>
constexpr int kWalkThreads = kMethod == TreeVerifyMethod::kEquality ? kLogitsMaxThreads : kRatioThreads;

template <TreeVerifyMethod kMethod>
__global__ void __launch_bounds__(kWalkThreads<kMethod>, 1)
    walk_rows_kernel(const VerifyTreeParams params, const Scratch scratch) {
  __shared__ WalkShared shared;
  const int64_t request = blockIdx.x;
  Tree tree = tree_of(params, request);
  cache_links(tree, shared.tree);
  if (tree.num_rows == 0) {
    if (threadIdx.x == 0) params.num_accepted[request] = -1;
    return;
  }
  int32_t* path = params.path_rows + tree.first_row;
  int32_t row = 0, num_accepted = 0;
  if (threadIdx.x == 0) path[0] = 0;
#pragma unroll 1
  while (true) {
    Step step;
    if constexpr (kMethod == TreeVerifyMethod::kEquality) {
      step = step_by_equality(tree, row, request, scratch, shared);
    } else {
      step = step_by_ratio(tree, row, request, scratch, shared);
    }
    if (step.child < 0) {
      if (threadIdx.x == 0) emit_path(tree, request, num_accepted, step.token);
      return;
    }
    row = step.child;
    ++num_accepted;
    if (threadIdx.x == 0) path[num_accepted] = row;
  }
}

__global__ void __launch_bounds__(kWarpSize)
    walk_samples_kernel(const VerifyTreeParams params, const int32_t* sampled) {
  __shared__ CachedTree copy;
  const int64_t request = blockIdx.x;
  Tree tree = tree_of(params, request);
  cache_links(tree, copy);
  if (threadIdx.x != 0) return;
  if (tree.num_rows == 0) {
    params.num_accepted[request] = -1;
    return;
  }
  int32_t* path = params.path_rows + tree.first_row;
  int32_t row = 0, num_accepted = 0;
  path[0] = 0;
  while (true) {
    const int32_t token = sampled[tree.first_row + row];
    const int32_t child = token < 0 ? -1 : find_child(tree, row, token);
    if (child < 0) return emit_path(tree, request, num_accepted, token);
    path[++num_accepted] = row = child;
  }
}

void walk_samples(const VerifyTreeParams& params, ExecutionContext& context) {
  const size_t mask_bytes = mask_scratch_bytes(params.target);
  const size_t sampled_bytes = static_cast<size_t>(params.target.num_rows) * sizeof(int32_t);
  auto* sampled = static_cast<int32_t*>(context.device->workspace(sampled_bytes + mask_bytes));
  SampleParams plain = params.target;
  plain.token_ids = sampled;
  plain.purpose = NoisePurpose::kSample;
  plain.noise_index = 0;
  plain.weights = nullptr;
  sample_rows(plain, params.row_begin + params.num_requests,
              reinterpret_cast<uint32_t*>(sampled + params.target.num_rows), context);
  const int32_t* ids = sampled;
  launch("verify_tree_walk", walk_samples_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_requests)), .block = dim3(kWarpSize)}, context, params, ids);
}

}  // namespace

void verify_tree(const VerifyTreeParams& params, ExecutionContext& context) {
  const bool by_equality = params.method == TreeVerifyMethod::kEquality;
  if (by_equality && samples_all_rows(params.target.num_rows, params.num_requests))
    return walk_samples(params, context);
  const int64_t vocab_size = params.target.vocab_size;
  const bool has_map = !by_equality && params.draft_logits != nullptr && params.draft_to_target != nullptr;
  const int64_t mask_words =
      params.target.masked_begin == nullptr ? 0 : params.num_requests * num_mask_words(vocab_size);
  const size_t num_bytes = static_cast<size_t>(mask_words + (has_map ? vocab_size : 0)) * sizeof(uint32_t);
  Scratch scratch = {num_bytes == 0 ? nullptr : static_cast<uint32_t*>(context.device->workspace(num_bytes)), nullptr};
  if (has_map) {
    auto* map = reinterpret_cast<int32_t*>(scratch.mask_words + mask_words);
    invert_draft_map({params.draft_to_target, params.draft_vocab_size}, map, vocab_size, context);
    scratch.target_to_draft = map;
  }
  const int num_threads = choose_logits_threads(vocab_size);
  const dim3 grid(static_cast<unsigned>(params.num_requests));
  if (by_equality) {
    launch("verify_tree", walk_rows_kernel<TreeVerifyMethod::kEquality>,
           {.grid = grid, .block = dim3(static_cast<unsigned>(num_threads))}, context, params, scratch);
  } else {
    launch("verify_tree", walk_rows_kernel<TreeVerifyMethod::kStandard>,
           {.grid = grid, .block = dim3(static_cast<unsigned>(std::min(num_threads, kRatioThreads)))}, context, params,
           scratch);
  }
}

}  // namespace eagle31rt::cuda
