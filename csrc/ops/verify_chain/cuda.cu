// Verification of all chains of a batch, whatever their lengths: a fixed number of launches, no number on the host.
//
//   kEquality, kSynthetic   sample   one block a row: the plain sample of every row (sample/cuda.cu)
//                           walk     one thread a request
//   kStandard, kBlock       invert   target id -> draft id, if the draft has a vocabulary of its own
//                           laws     one block a row and law: maximum, cuts and total of p and of q
//                           rest     kBlock only, one block a row: total of its residual, which needs the ratio of the
//                                    drafts before it, each two look-ups
//                           emit     one block a request: coins, then the draw from p or from the residual
//
// What costs is passes over logits (row_law.cuh), so those run side by side for all rows of all requests; what depends
// on the row before is a few look-ups, done by every thread of a block alike. The arithmetic is that of rules.h and
// law.h, compiled without contraction: the ids are those of the CPU bit for bit.
//
// 32 requests of 5 drafts, 128256 target ids, 32000 draft ids: 192 rows. kEquality reads 98 MB: 49 us on an A100, 29 us
// on an H100, 21 us on an H200, 12 us on a B200. kBlock reads these and 25 MB of draft logits once from memory and then
// twice from the second-level cache; about 200 PTX instructions an id in the residual (counted by tools/ptxsim, a draft
// vocabulary of a quarter of the ids), so `rest` is bound by arithmetic: 160 rows * 128256 ids * 200 / (132 * 128
// lanes) = 0.14 ms on an H100 at 1.7 GHz, an estimate that counts double precision like single. p of weight 0 (what the
// filters removed) skips q.
#include "device/cuda/launch.h"
#include "ops/sample/config.h"
#include "ops/sample/cuda_rows.h"
#include "ops/sample/selection.cuh"
#include "ops/verify_chain/chain.h"
#include "ops/verify_chain/cuda_draft_map.h"
#include "ops/verify_chain/draft_law.cuh"

namespace eagle31rt::cuda {

namespace {

constexpr int kWalkThreads = 128;

// What `laws` and `rest` leave of a verify row.
struct RowSummary {
  RowLaw target;
  uint64_t target_masses[kMaxWarps];
  RowLaw draft;  // of the draft logits of the row
  uint64_t residual_total;
};

struct Scratch {
  RowSummary* rows;          // [num_rows]
  int32_t* sampled;          // [num_rows]
  uint32_t* mask_words;      // [num_rows, num_mask_words]
  int32_t* target_to_draft;  // [vocab_size] or null
};

// A place in the chain of one request.
struct ChainView {
  const VerifyChainParams& params;
  const Scratch& scratch;
  int64_t request;

  E31_DEVICE int64_t row(int64_t place) const { return params.row_begin[request] + place; }
  E31_DEVICE int32_t draft(int64_t place) const { return params.draft_token_ids[row(place) + 1]; }
  E31_DEVICE bool stands(int64_t place, NoisePurpose purpose, double probability) const {
    return rules::stands(verify_coin(params, request, place, purpose), probability);
  }
  E31_DEVICE RowLogits logits(int64_t place) const {
    const int64_t r = row(place);
    return row_logits(params.target, r, scratch.mask_words + r * num_mask_words(params.target.vocab_size), false);
  }
  E31_DEVICE DraftLaw draft_law(int64_t place) const {
    return make_draft_law(params, row(place), scratch.rows[row(place)].draft, scratch.target_to_draft);
  }
  E31_DEVICE ResidualWeights residual(int64_t place, double scale) const {
    const RowLaw& p = scratch.rows[row(place)].target;
    return {p, logits(place), rules::inverse_total(p.total), draft_law(place), scale};
  }
  // acceptance_ratio of the draft after row `place`.
  E31_DEVICE double ratio(int64_t place, double scale) const {
    const RowLaw& law = scratch.rows[row(place)].target;
    const uint64_t weight = weight_of(law, logits(place), draft(place));
    const double p = rules::probability(weight, rules::inverse_total(law.total));
    return rules::acceptance_ratio(scale, p, draft_law(place).probability(draft(place)));
  }
};

// The request that a row belongs to: the last one that begins at it or before, so never an empty one.
E31_DEVICE int64_t request_of(const VerifyChainParams& params, int64_t row) {
  int64_t low = 0, high = params.num_requests;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (params.row_begin[middle] <= row ? low : high) = middle;
  }
  return low;
}

constexpr int kInvertThreads = 256;

__global__ void __launch_bounds__(kInvertThreads)
    invert_kernel(const DraftMap map, int32_t* target_to_draft, int64_t vocab_size) {
  const int64_t id = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (id >= map.draft_vocab_size) return;
  const int32_t target = map.draft_to_target[id];
  if (target >= 0 && target < vocab_size) target_to_draft[target] = static_cast<int32_t>(id);
}

// blockIdx.y: 0 the target's law, 1 the draft's.
__global__ void __launch_bounds__(kLogitsMaxThreads)
    laws_kernel(const VerifyChainParams params, const Scratch scratch) {
  __shared__ LawShared shared;
  const int64_t r = blockIdx.x;
  if (r >= params.row_begin[params.num_requests]) return;
  const SamplingRow& sampling = params.target.rows[r];
  RowSummary& summary = scratch.rows[r];
  if (blockIdx.y == 1) {
    if (!(sampling.temperature > 0.0f)) return;  // a point on the draft
    const SamplingRow plain = {sampling.temperature, 0, 1.0f, 0.0f, 0, 0};
    const RowLaw law = make_law(draft_logits(params, r), static_cast<int32_t>(params.draft_vocab_size), plain, shared);
    if (threadIdx.x == 0) summary.draft = law;
    return;
  }
  uint32_t* words = scratch.mask_words + r * num_mask_words(params.target.vocab_size);
  const RowLogits logits = row_logits(params.target, r, words, true);
  const RowLaw law = make_law(logits, static_cast<int32_t>(params.target.vocab_size), sampling, shared);
  if (threadIdx.x == 0) summary.target = law;
  const bool has_masses = law.total > 0 && law.point_id < 0;
  if (has_masses && threadIdx.x < num_warps()) summary.target_masses[threadIdx.x] = shared.masses[threadIdx.x];
}

// kBlock: the residual total of each row that a draft precedes and a draft follows.
__global__ void __launch_bounds__(kLogitsMaxThreads)
    rest_kernel(const VerifyChainParams params, const Scratch scratch) {
  __shared__ uint64_t masses[kMaxWarps];
  const int64_t r = blockIdx.x;
  if (r >= params.row_begin[params.num_requests]) return;
  const ChainView chain = {params, scratch, request_of(params, r)};
  const int64_t place = r - chain.row(0);
  if (place == 0 || place >= num_valid_drafts(params, chain.request)) return;
  double ratio = 1.0;
  for (int64_t i = 0; i < place && ratio > 0.0; ++i) ratio = chain.ratio(i, ratio);
  const int32_t vocab_size = static_cast<int32_t>(params.target.vocab_size);
  const uint64_t total = sum_segments(chain.residual(place, ratio), vocab_size, masses);
  if (threadIdx.x == 0) scratch.rows[r].residual_total = total;
}

struct Accepted {
  int64_t num_drafts;
  double scale;  // of the residual after them
};

E31_DEVICE Accepted accept_standard(const ChainView& chain, int64_t num_drafts) {
  int64_t place = 0;
  while (place < num_drafts && chain.stands(place, NoisePurpose::kAccept, chain.ratio(place, 1.0))) ++place;
  return {place, 1.0};
}

E31_DEVICE Accepted accept_block(const ChainView& chain, int64_t num_drafts) {
  Accepted accepted = {0, 1.0};
  double ratio = 1.0;
  for (int64_t place = 0; place < num_drafts && ratio > 0.0; ++place) {
    ratio = chain.ratio(place, ratio);
    const bool is_last = place + 1 == num_drafts;
    const double acceptance =
        is_last ? ratio : rules::block_acceptance(ratio, chain.scratch.rows[chain.row(place + 1)].residual_total);
    if (chain.stands(place, NoisePurpose::kAccept, acceptance)) accepted = {place + 1, ratio};
  }
  return accepted;
}

// Draws the token after the accepted drafts: of p if no draft follows, else of the residual; p again if nothing is left
// by rounding.
E31_DEVICE int32_t draw_after(const ChainView& chain, const Accepted& accepted, int64_t num_drafts, uint64_t* masses,
                              uint64_t* warp_values) {
  const int64_t place = accepted.num_drafts;
  const int32_t vocab_size = static_cast<int32_t>(chain.params.target.vocab_size);
  const uint64_t bits = verify_bits(chain.params, chain.request, place, NoisePurpose::kResidual);
  if (place < num_drafts) {
    const ResidualWeights residual = chain.residual(place, accepted.scale);
    const uint64_t total = sum_segments(residual, vocab_size, masses);
    if (total > 0) return draw_id(residual, vocab_size, masses, total, bits, warp_values);
  }
  const RowSummary& summary = chain.scratch.rows[chain.row(place)];
  return draw_from_law(summary.target, chain.logits(place), vocab_size, summary.target_masses, bits, warp_values);
}

__global__ void __launch_bounds__(kLogitsMaxThreads)
    emit_kernel(const VerifyChainParams params, const Scratch scratch) {
  __shared__ uint64_t masses[kMaxWarps], warp_values[kMaxWarps];
  const ChainView chain = {params, scratch, blockIdx.x};
  if (is_padding(params, chain.request)) {
    if (threadIdx.x == 0) params.num_accepted[chain.request] = -1;
    return;
  }
  const int64_t num_drafts = num_valid_drafts(params, chain.request);
  const Accepted accepted =
      params.method == VerifyMethod::kStandard ? accept_standard(chain, num_drafts) : accept_block(chain, num_drafts);
  const int32_t token = draw_after(chain, accepted, num_drafts, masses, warp_values);
  if (threadIdx.x == 0) emit_tokens(params, chain.request, accepted.num_drafts, token);
}

__global__ void __launch_bounds__(kWalkThreads) walk_kernel(const VerifyChainParams params, const Scratch scratch) {
  const ChainView chain = {params, scratch, int64_t{blockIdx.x} * kWalkThreads + threadIdx.x};
  if (chain.request >= params.num_requests) return;
  if (is_padding(params, chain.request)) {
    params.num_accepted[chain.request] = -1;
    return;
  }
  const int64_t num_drafts = num_valid_drafts(params, chain.request);
  int64_t place = 0;
  if (params.method == VerifyMethod::kEquality) {
    while (place < num_drafts && scratch.sampled[chain.row(place)] == chain.draft(place)) ++place;
  } else {
    while (place < num_drafts &&
           chain.stands(place, NoisePurpose::kSynthetic, params.acceptance_rates[chain.row(place)])) {
      ++place;
    }
  }
  emit_tokens(params, chain.request, place, scratch.sampled[chain.row(place)]);
}

// Consecutive arrays in one allocation, each aligned to 256 bytes. With a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <typename Element>
  Element* take(size_t count) {
    Element* array = base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + size_);
    size_ += (count * sizeof(Element) + 255) / 256 * 256;
    return array;
  }
  size_t size() const { return size_; }

 private:
  std::byte* base_;
  size_t size_ = 0;
};

bool is_by_ratio(VerifyMethod method) { return method == VerifyMethod::kStandard || method == VerifyMethod::kBlock; }

Scratch carve(const VerifyChainParams& params, Carver& carver) {
  const auto num_rows = static_cast<size_t>(params.target.num_rows);
  const bool has_map = params.draft_logits != nullptr && params.draft_to_target != nullptr;
  const bool by_ratio = is_by_ratio(params.method);
  return {.rows = carver.take<RowSummary>(by_ratio ? num_rows : 0),
          .sampled = carver.take<int32_t>(by_ratio ? 0 : num_rows),
          .mask_words = carver.take<uint32_t>(mask_scratch_bytes(params.target) / sizeof(uint32_t)),
          .target_to_draft =
              by_ratio && has_map ? carver.take<int32_t>(static_cast<size_t>(params.target.vocab_size)) : nullptr};
}

void verify_by_ratio(const VerifyChainParams& params, const Scratch& scratch, ExecutionContext& context) {
  if (scratch.target_to_draft != nullptr) {
    invert_draft_map({params.draft_to_target, params.draft_vocab_size}, scratch.target_to_draft,
                     params.target.vocab_size, context);
  }
  const dim3 block(static_cast<unsigned>(choose_logits_threads(params.target.vocab_size)));
  const auto num_rows = static_cast<unsigned>(params.target.num_rows);
  launch("verify_chain_laws", laws_kernel,
         {.grid = dim3(num_rows, params.draft_logits != nullptr ? 2 : 1), .block = block}, context, params, scratch);
  if (params.method == VerifyMethod::kBlock) {
    launch("verify_chain_rest", rest_kernel, {.grid = dim3(num_rows), .block = block}, context, params, scratch);
  }
  launch("verify_chain_emit", emit_kernel, {.grid = dim3(static_cast<unsigned>(params.num_requests)), .block = block},
         context, params, scratch);
}

void verify_by_sample(const VerifyChainParams& params, const Scratch& scratch, ExecutionContext& context) {
  SampleParams plain = params.target;
  plain.token_ids = scratch.sampled;
  plain.purpose = NoisePurpose::kSample;
  plain.noise_index = 0;
  plain.weights = nullptr;
  sample_rows(plain, params.row_begin + params.num_requests, scratch.mask_words, context);
  launch("verify_chain_walk", walk_kernel,
         {.grid = dim3(static_cast<unsigned>((params.num_requests + kWalkThreads - 1) / kWalkThreads)),
          .block = dim3(kWalkThreads)},
         context, params, scratch);
}

}  // namespace

void invert_draft_map(const DraftMap& map, int32_t* target_to_draft, int64_t vocab_size, ExecutionContext& context) {
  context.device->fill(target_to_draft, 0xff, static_cast<size_t>(vocab_size) * sizeof(int32_t));
  constexpr int64_t kThreads = kInvertThreads;
  launch(
      "invert_draft_map", invert_kernel,
      {.grid = dim3(static_cast<unsigned>((map.draft_vocab_size + kThreads - 1) / kThreads)), .block = dim3(kThreads)},
      context, map, target_to_draft, vocab_size);
}

void verify_chain(const VerifyChainParams& params, ExecutionContext& context) {
  Carver counter(nullptr);
  carve(params, counter);
  Carver carver(context.device->workspace(counter.size()));
  const Scratch scratch = carve(params, carver);
  if (is_by_ratio(params.method)) {
    verify_by_ratio(params, scratch, context);
  } else {
    verify_by_sample(params, scratch, context);
  }
}

}  // namespace eagle31rt::cuda
