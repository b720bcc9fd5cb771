// Draft trees with arrays, for tests/test_ops_tree.py: a dict of arrays is one operator's parameters.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bindings/testing.h"
#include "bindings/testing_rows.h"
#include "device/execution_context.h"
#include "ops/verify_tree/reference_rules.h"

namespace eagle31rt {

namespace {

template <typename Params>
void run_op(const std::string& instruction_set, void (*Ops::*op)(const Params&, ExecutionContext&),
            void (*reference)(const Params&), const Params& params) {
  if (instruction_set == "reference") return reference(params);
  ThreadPool pool(2);
  const Ops& ops = ops_by_name(instruction_set);
  ExecutionContext context{pool, ops};
  (ops.*op)(params, context);
}

// Returns num_nodes and a dict of the row arrays.
py::tuple run_build_tree(const std::string& instruction_set, const Array<float>& scores, const Array<int32_t>& parents,
                         const Array<int32_t>& token_ids, const Array<int32_t>& candidate_begin,
                         const Array<int32_t>& root_token_ids, const Array<int32_t>& row_begin, int32_t mask_words,
                         bool by_candidate) {
  const py::ssize_t num_requests = row_begin.size() - 1;
  const py::ssize_t num_rows = row_begin.at(num_requests);
  BuildTreeParams params = {};
  params.scores = scores.data();
  params.parents = parents.data();
  params.token_ids = token_ids.data();
  params.candidate_begin = candidate_begin.data();
  params.root_token_ids = root_token_ids.data();
  params.row_begin = row_begin.data();
  params.num_requests = num_requests;
  params.mask_words = mask_words;
  params.order = by_candidate ? TreeOrder::kByCandidate : TreeOrder::kByScore;
  Array<int32_t> num_nodes(num_requests);
  params.num_nodes = num_nodes.mutable_data();
  py::dict rows;
  const auto add_column = [&](const char* name) {
    Array<int32_t> column(num_rows);
    std::fill_n(column.mutable_data(), num_rows, -7);
    rows[name] = column;
    return column.mutable_data();
  };
  params.row_token_ids = add_column("token_ids");
  params.row_candidates = add_column("candidates");
  params.row_parents = add_column("parents");
  params.first_child = add_column("first_child");
  params.next_sibling = add_column("next_sibling");
  params.depths = add_column("depths");
  Array<uint64_t> mask({num_rows, static_cast<py::ssize_t>(mask_words)});
  params.ancestor_mask = mask.mutable_data();
  rows["ancestor_mask"] = mask;
  run_op(instruction_set, &Ops::build_tree, reference::build_tree, params);
  return py::make_tuple(num_nodes, rows);
}

// A RowBatch plus a dict with row_begin, token_ids, first_child, next_sibling and, where they apply, draft_logits,
// draft_rows and draft_to_target (verify_tree.h). Keeps the arrays alive.
struct TreeBatch {
  RowBatch rows;
  py::dict arrays;
  VerifyTreeParams params = {};

  TreeBatch(const std::string& method, const Array<float>& logits, const py::dict& columns, int64_t vocab_size,
            const py::dict& trees)
      : rows(logits, columns) {
    params.method = tree_verify_method(method_by_name(method));
    params.target = rows.params(vocab_size);
    params.row_begin = column(trees, "row_begin", 0);
    params.num_requests = py::len(arrays["row_begin"]) - 1;
    E31_CHECK(params.row_begin[params.num_requests] <= params.target.num_rows, kInvalidArgument, "row_begin ends at ",
              params.row_begin[params.num_requests], " of ", params.target.num_rows, " rows");
    params.token_ids = column(trees, "token_ids", params.target.num_rows);
    params.first_child = column(trees, "first_child", params.target.num_rows);
    params.next_sibling = column(trees, "next_sibling", params.target.num_rows);
    if (trees.contains("draft_rows")) params.draft_rows = column(trees, "draft_rows", params.target.num_rows);
    if (trees.contains("draft_to_target")) params.draft_to_target = column(trees, "draft_to_target", 0);
    if (trees.contains("draft_logits")) {
      const auto draft_logits = trees["draft_logits"].cast<Array<float>>();
      arrays["draft_logits"] = draft_logits;
      params.draft_logits = draft_logits.data();
      params.draft_vocab_size = params.draft_logits_stride = draft_logits.shape(1);
    }
  }

 private:
  const int32_t* column(const py::dict& trees, const char* name, int64_t size) {
    const auto array = trees[name].cast<Array<int32_t>>();
    E31_CHECK(size == 0 || array.size() == size, kInvalidArgument, name, " has ", array.size(), " entries for ", size);
    arrays[name] = array;
    return array.data();
  }
};

// Returns num_accepted, path_rows and emitted_token_ids.
py::tuple run_verify_tree(const std::string& instruction_set, const std::string& method, const Array<float>& logits,
                          const py::dict& columns, int64_t vocab_size, const py::dict& trees) {
  TreeBatch batch(method, logits, columns, vocab_size, trees);
  VerifyTreeParams& params = batch.params;
  Array<int32_t> num_accepted(params.num_requests), path_rows(params.target.num_rows), emitted(params.target.num_rows);
  params.num_accepted = num_accepted.mutable_data();
  params.path_rows = path_rows.mutable_data();
  params.emitted_token_ids = emitted.mutable_data();
  run_op(instruction_set, &Ops::verify_tree, reference::verify_tree, params);
  return py::make_tuple(num_accepted, path_rows, emitted);
}

// Per request and row: its children, the probability of each to stand once those before it fell, and the weights of
// what is emitted if all fall.
py::list sibling_rules(const Array<float>& logits, const py::dict& columns, int64_t vocab_size, const py::dict& trees) {
  const TreeBatch batch("standard", logits, columns, vocab_size, trees);
  py::list requests;
  for (int64_t request = 0; request < batch.params.num_requests; ++request) {
    py::list rows;
    const int32_t num_rows = batch.params.row_begin[request + 1] - batch.params.row_begin[request];
    for (int32_t row = 0; row < num_rows; ++row) {
      const reference::SiblingRules rules = reference::sibling_rules(batch.params, request, row);
      rows.append(py::make_tuple(rules.rows, rules.acceptance, rules.emission_weights));
    }
    requests.append(rows);
  }
  return requests;
}

// keys and values: one array [num_pages, num_kv_heads, ...] per layer, changed in place; one layer without a list.
void run_compact_kv(const std::string& instruction_set, const std::vector<py::array>& keys,
                    const std::vector<py::array>& values, int32_t page_size, bool dims_fastest,
                    const Array<int32_t>& row_begin, const Array<int64_t>& slots, const Array<int32_t>& num_accepted,
                    const Array<int32_t>& path_rows) {
  std::vector<KvCacheView> layers;
  for (size_t i = 0; i < keys.size(); ++i) {
    py::array key = keys[i], value = values[i];
    layers.push_back({key.mutable_data(), value.mutable_data(),
                      value.itemsize() == 4 ? DType::kFloat32 : DType::kBFloat16, value.shape(0), page_size,
                      static_cast<int32_t>(value.shape(1)), static_cast<int32_t>(value.shape(3)),
                      dims_fastest ? KeyLayout::kDimsFastest : KeyLayout::kTokensFastest});
  }
  CompactKvParams params = {};
  params.cache = layers.at(0);
  params.layers = layers.size() > 1 ? layers.data() : nullptr;
  params.num_layers = static_cast<int32_t>(layers.size());
  params.row_begin = row_begin.data();
  params.slots = slots.data();
  params.num_accepted = num_accepted.data();
  params.path_rows = path_rows.data();
  params.num_requests = row_begin.size() - 1;
  run_op(instruction_set, &Ops::compact_kv, reference::compact_kv, params);
}

}  // namespace

void bind_testing_tree(py::module_& module) {
  module.attr("MAX_TREE_CANDIDATES") = kMaxTreeCandidates;
  module.attr("MAX_TREE_ROWS") = kMaxTreeRows;
  module.attr("MAX_TRIED_SIBLINGS") = kMaxTriedSiblings;
  module.def("build_tree", run_build_tree, py::arg("instruction_set"), py::arg("scores"), py::arg("parents"),
             py::arg("token_ids"), py::arg("candidate_begin"), py::arg("root_token_ids"), py::arg("row_begin"),
             py::arg("mask_words"), py::arg("by_candidate") = false);
  module.def("verify_tree", run_verify_tree, py::arg("instruction_set"), py::arg("method"), py::arg("logits"),
             py::arg("columns"), py::arg("vocab_size"), py::arg("trees"));
  module.def("sibling_rules", sibling_rules, py::arg("logits"), py::arg("columns"), py::arg("vocab_size"),
             py::arg("trees"));
  module.def("compact_kv", run_compact_kv, py::arg("instruction_set"), py::arg("keys"), py::arg("values"),
             py::arg("page_size"), py::arg("dims_fastest"), py::arg("row_begin"), py::arg("slots"),
             py::arg("num_accepted"), py::arg("path_rows"));
}

}  // namespace eagle31rt
