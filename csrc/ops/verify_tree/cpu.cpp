// One request per task. A row is looked at only if the walk gets there: a tree of 60 nodes of which 4 are accepted
// costs 5 rows, not 61. A row costs one pass over its logits when greedy, two when sampled; kStandard adds one pass
// over both laws for each child that it refuses. The residual after several refusals is computed from the logits again
// in each pass, id by id: nothing of vocabulary size is stored.
#include "device/execution_context.h"
#include "ops/sample/row_logits.h"
#include "ops/verify_chain/draft_law.h"
#include "ops/verify_tree/sibling_rules.h"
#include "ops/verify_tree/tree_walk.h"

namespace eagle31rt::E31_ISA {

namespace {

// r as the refused children left it, as weights for sum_blocks and draw_id.
struct Residual {
  const RowLaw& p;
  const DraftLaw& q;  // inverse_total 1, so that its probabilities are weights; an empty law for point masses
  int32_t num_refused = 0;
  rules::Trial refused[kMaxTriedSiblings] = {};
  double inverse_rest[kMaxTriedSiblings + 1] = {};  // of p, then of what each refusal left

  // What each id has of r; weights of p as long as nothing was refused.
  void operator()(int64_t first_id, int64_t count, uint64_t* out) const {
    law_weights(p, first_id, count, out);
    if (num_refused == 0) return;
    double draft[kBlock];
    draft_probabilities(q, first_id, count, draft);
    for (int32_t n = 0; n < num_refused; ++n) {
      const rules::Trial& trial = refused[n];
      for (int64_t i = 0; i < count; ++i) {
        const double rest = share(out[i], n);
        out[i] = rules::residual_weight(rules::residual(1.0, rest, rules::draft_share(trial, first_id + i, draft[i])));
      }
      const int64_t place = trial.token_id - first_id;
      if (place >= 0 && place < count) draft[place] = 0;
    }
  }

  double share(uint64_t weight, int32_t refusals) const {
    const double inverse = inverse_rest[refusals];
    return refusals == 0 ? rules::probability(weight, inverse) : rules::residual_share(weight, inverse);
  }
};

// One request on one thread.
struct Walk {
  Tree tree;
  float* scratch;
  int thread;
  uint64_t block_masses[kMaxBlocks];

  RowLaw target_law(int32_t row) {
    const SampleParams& target = tree.params.target;
    const int64_t r = tree.first_row + row;
    return make_law(row_logits(target, r, scratch, thread), target.vocab_size, target.rows[r], block_masses);
  }

  // The law that drew the children of `row`, as Residual wants it.
  DraftLaw draft_law(int32_t row) {
    const VerifyTreeParams& params = tree.params;
    const DraftLaw none = {.law = {}, .to_target = nullptr, .point_id = -1, .inverse_total = 1.0};
    const int64_t draft_row = draft_row_of(tree, row);
    if (draft_row < 0) return none;
    DraftLaw q = none;
    q.to_target = params.draft_to_target;
    const SamplingRow sampling = {params.target.rows[tree.first_row + row].temperature, 0, 1.0f, 0.0f, 0, 0};
    q.law = make_law(params.draft_logits + draft_row * params.draft_logits_stride, params.draft_vocab_size, sampling,
                     block_masses);
    return q.law.total == 0 || q.law.point_id >= 0 ? none : q;
  }

  int32_t step_by_equality(int32_t row, int32_t* token) {
    const RowLaw p = target_law(row);
    *token = static_cast<int32_t>(draw_from_law(p, block_masses, plain_bits(tree, row)));
    return *token < 0 ? -1 : find_child(tree, row, *token);
  }

  int32_t step_by_ratio(int32_t row, int32_t* token) {
    Siblings siblings;
    find_siblings(tree, row, &siblings);
    const DraftLaw q = siblings.count > 0 ? draft_law(row) : DraftLaw{};
    const RowLaw p = target_law(row);
    Residual r = {p, q};
    r.inverse_rest[0] = rules::inverse_total(p.total);
    uint64_t draft_total = q.law.total, rest_total = p.total;
    for (int32_t i = 0; i < siblings.count; ++i) {
      const int32_t child = siblings.rows[i], x = tree.token_ids[child];
      const rules::Trial trial = {rules::inverse_total(draft_total), x};
      const double draft_weight = draft_probability(q, x);
      uint64_t weight[kBlock];
      r(x, 1, weight);
      const double acceptance =
          rules::acceptance_ratio(1.0, r.share(weight[0], i), rules::draft_share(trial, x, draft_weight));
      if (rules::stands(child_coin(tree, row, child), acceptance)) return child;
      r.refused[i] = trial;
      r.num_refused = i + 1;
      rest_total = sum_blocks(r, p.vocab_size, block_masses);
      if (rest_total == 0) break;
      r.inverse_rest[i + 1] = rules::inverse_total(rest_total);
      draft_total -= static_cast<uint64_t>(draft_weight);
    }
    const uint64_t noise = emission_bits(tree, row);
    if (r.num_refused > 0 && rest_total > 0) {
      *token = static_cast<int32_t>(draw_id(r, p.vocab_size, block_masses, rest_total, noise));
    } else {
      if (r.num_refused > 0) target_law(row);  // its block masses were overwritten
      *token = static_cast<int32_t>(draw_from_law(p, block_masses, noise));
    }
    return -1;
  }

  void run(int64_t request) {
    const bool by_equality = tree.params.method == TreeVerifyMethod::kEquality;
    int32_t* path = tree.params.path_rows + tree.first_row;
    int32_t num_accepted = 0, token = -1;
    path[0] = 0;
    while (true) {
      const int32_t row = path[num_accepted];
      const int32_t child = by_equality ? step_by_equality(row, &token) : step_by_ratio(row, &token);
      if (child < 0) break;
      path[++num_accepted] = child;
    }
    emit_path(tree, request, num_accepted, token);
  }
};

}  // namespace

void verify_tree(const VerifyTreeParams& params, ExecutionContext& context) {
  float* scratch = masked_row_scratch(params.target, context.pool.num_threads());
  auto verify_request = [&](int64_t request, int thread) {
    Walk walk = {tree_of(params, request), scratch, thread, {}};
    if (walk.tree.num_rows > 0) {
      walk.run(request);
    } else {
      params.num_accepted[request] = -1;
    }
  };
  context.pool.parallel_for(params.num_requests, verify_request);
}

}  // namespace eagle31rt::E31_ISA
