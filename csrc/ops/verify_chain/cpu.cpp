// kEquality samples every row on the pool and then walks; the other methods run one request per task, since a row's law
// is wanted only if the walk gets there.
#include "device/execution_context.h"
#include "ops/sample/row_logits.h"
#include "ops/verify_chain/chain.h"
#include "ops/verify_chain/draft_law.h"

namespace eagle31rt::E31_ISA {

void sample(const SampleParams&, ExecutionContext&);

namespace {

// One request on one thread.
struct Chain {
  const VerifyChainParams& params;
  int64_t request;
  float* scratch;
  int thread;
  uint64_t block_masses[kMaxBlocks];

  int64_t row(int64_t place) const { return params.row_begin[request] + place; }
  int32_t draft(int64_t place) const { return params.draft_token_ids[row(place) + 1]; }  // the one after row `place`
  uint64_t bits(int64_t place, NoisePurpose purpose) const { return verify_bits(params, request, place, purpose); }
  bool stands(int64_t place, NoisePurpose purpose, double probability) const {
    return rules::stands(verify_coin(params, request, place, purpose), probability);
  }
  RowLaw target_law(int64_t place) {
    const int64_t r = row(place);
    return make_law(row_logits(params.target, r, scratch, thread), params.target.vocab_size, params.target.rows[r],
                    block_masses);
  }
  double target_probability(const RowLaw& law, int64_t place) const {  // of the draft after row `place`
    return rules::probability(weight_at(law, draft(place)), rules::inverse_total(law.total));
  }
  DraftLaw draft_law(int64_t place) { return make_draft_law(params, row(place), block_masses); }
  uint64_t sum_residual(const ResidualWeights& residual) {
    return sum_blocks(residual, params.target.vocab_size, block_masses);
  }

  // Emits `num_accepted` drafts and a token: of p if no draft follows, else of the residual; p again if nothing is left
  // by rounding.
  void finish(int64_t num_accepted, int64_t num_drafts, double scale) {
    const uint64_t noise = bits(num_accepted, NoisePurpose::kResidual);
    if (num_accepted < num_drafts) {
      const DraftLaw q = draft_law(num_accepted);
      const RowLaw p = target_law(num_accepted);
      const ResidualWeights residual = {p, q, scale};
      const uint64_t total = sum_residual(residual);
      if (total > 0) {
        const int64_t id = draw_id(residual, p.vocab_size, block_masses, total, noise);
        return emit_tokens(params, request, num_accepted, static_cast<int32_t>(id));
      }
    }
    const RowLaw p = target_law(num_accepted);
    emit_tokens(params, request, num_accepted, static_cast<int32_t>(draw_from_law(p, block_masses, noise)));
  }

  void verify_standard() {
    const int64_t num_drafts = num_valid_drafts(params, request);
    int64_t place = 0;
    for (; place < num_drafts; ++place) {
      const double q = draft_probability(draft_law(place), draft(place));
      const double p = target_probability(target_law(place), place);
      if (!stands(place, NoisePurpose::kAccept, rules::acceptance_ratio(1.0, p, q))) break;
    }
    finish(place, num_drafts, 1.0);
  }

  void verify_block() {
    const int64_t num_drafts = num_valid_drafts(params, request);
    int64_t num_accepted = 0;
    double ratio = 1.0, accepted_ratio = 1.0;
    RowLaw p = target_law(0);
    DraftLaw q = num_drafts > 0 ? draft_law(0) : DraftLaw{};
    for (int64_t place = 0; place < num_drafts && ratio > 0.0; ++place) {
      ratio = rules::acceptance_ratio(ratio, target_probability(p, place), draft_probability(q, draft(place)));
      double acceptance = ratio;
      if (place + 1 < num_drafts) {
        q = draft_law(place + 1);
        p = target_law(place + 1);
        acceptance = rules::block_acceptance(ratio, sum_residual({p, q, ratio}));
      }
      if (stands(place, NoisePurpose::kAccept, acceptance)) {
        num_accepted = place + 1;
        accepted_ratio = ratio;
      }
    }
    finish(num_accepted, num_drafts, accepted_ratio);
  }

  void verify_synthetic() {
    const int64_t num_drafts = num_valid_drafts(params, request);
    int64_t place = 0;
    while (place < num_drafts && stands(place, NoisePurpose::kSynthetic, params.acceptance_rates[row(place)])) ++place;
    const RowLaw law = target_law(place);
    const SamplingRow& last = params.target.rows[row(place)];
    const uint64_t noise = random_bits64(last.seed, last.position, NoisePurpose::kSample, 0);
    emit_tokens(params, request, place, static_cast<int32_t>(draw_from_law(law, block_masses, noise)));
  }
};

void verify_equality(const VerifyChainParams& params, ExecutionContext& context) {
  SampleParams plain = params.target;
  plain.token_ids = params.emitted_token_ids;
  plain.purpose = NoisePurpose::kSample;
  plain.noise_index = 0;
  plain.weights = nullptr;
  plain.num_rows = params.row_begin[params.num_requests];
  sample(plain, context);
  for (int64_t request = 0; request < params.num_requests; ++request) {
    if (is_padding(params, request)) {
      params.num_accepted[request] = -1;
      continue;
    }
    const int64_t begin = params.row_begin[request], num_drafts = num_valid_drafts(params, request);
    int64_t place = 0;
    while (place < num_drafts && params.emitted_token_ids[begin + place] == params.draft_token_ids[begin + place + 1]) {
      ++place;
    }
    emit_tokens(params, request, place, params.emitted_token_ids[begin + place]);
  }
}

}  // namespace

void verify_chain(const VerifyChainParams& params, ExecutionContext& context) {
  if (params.method == VerifyMethod::kEquality) return verify_equality(params, context);
  float* scratch = masked_row_scratch(params.target, context.pool.num_threads());
  auto verify_request = [&](int64_t request, int thread) {
    if (is_padding(params, request)) {
      params.num_accepted[request] = -1;
      return;
    }
    Chain chain = {params, request, scratch, thread, {}};
    if (params.method == VerifyMethod::kStandard) chain.verify_standard();
    if (params.method == VerifyMethod::kBlock) chain.verify_block();
    if (params.method == VerifyMethod::kSynthetic) chain.verify_synthetic();
  };
  context.pool.parallel_for(params.num_requests, verify_request);
}

}  // namespace eagle31rt::E31_ISA
