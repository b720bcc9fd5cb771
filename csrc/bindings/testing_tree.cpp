// Draft trees with arrays, for tests/test_ops_tree.py: a dict of arrays is one operator's parameters.
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <map>
#include <memory_resource>
#include <string>
#include <vector>

#include "bindings/testing.h"
#include "bindings/testing_rows.h"
#include "device/execution_context.h"
#include "ops/verify_tree/config.h"
#include "ops/verify_tree/reference_rules.h"

namespace eagle31rt {

namespace {

// Returns num_nodes and a dict of the row arrays.
py::tuple run_build_tree(const std::string& place_name, const Array<float>& scores, const Array<int32_t>& parents,
                         const Array<int32_t>& token_ids, const Array<int32_t>& candidate_begin,
                         const Array<int32_t>& root_token_ids, const Array<int32_t>& row_begin, int32_t mask_words,
                         bool by_candidate) {
  const Place place(place_name);
  const py::ssize_t num_requests = row_begin.size() - 1, num_rows = row_begin.at(num_requests);
  const std::pmr::vector<float> score_copy = device_copy(scores);
  const std::array<std::pmr::vector<int32_t>, 5> inputs = {device_copy(parents), device_copy(token_ids),
                                                           device_copy(candidate_begin), device_copy(root_token_ids),
                                                           device_copy(row_begin)};
  std::pmr::vector<int32_t> num_nodes(num_requests);
  std::array<std::pmr::vector<int32_t>, 6> columns;
  for (auto& column : columns) column.assign(num_rows, -7);
  std::pmr::vector<uint64_t> mask(num_rows * mask_words);
  BuildTreeParams params = {};
  params.scores = score_copy.data();
  params.parents = inputs[0].data();
  params.token_ids = inputs[1].data();
  params.candidate_begin = inputs[2].data();
  params.root_token_ids = inputs[3].data();
  params.row_begin = inputs[4].data();
  params.num_nodes = num_nodes.data();
  params.row_token_ids = columns[0].data();
  params.row_candidates = columns[1].data();
  params.row_parents = columns[2].data();
  params.first_child = columns[3].data();
  params.next_sibling = columns[4].data();
  params.depths = columns[5].data();
  params.ancestor_mask = mask.data();
  params.num_requests = num_requests;
  params.mask_words = mask_words;
  params.order = by_candidate ? TreeOrder::kByCandidate : TreeOrder::kByScore;
  place.run(2, &Ops::build_tree, reference::build_tree, params);
  py::dict rows;
  constexpr const char* kNames[] = {"token_ids", "candidates", "parents", "first_child", "next_sibling", "depths"};
  for (size_t i = 0; i < columns.size(); ++i) rows[kNames[i]] = host_copy(columns[i], {num_rows});
  rows["ancestor_mask"] = host_copy(mask, {num_rows, mask_words});
  return py::make_tuple(host_copy(num_nodes, {num_requests}), rows);
}

// A RowBatch plus a dict with row_begin, token_ids, first_child, next_sibling and, where they apply, draft_logits,
// draft_rows and draft_to_target (verify_tree.h).
struct TreeBatch {
  RowBatch rows;
  std::map<std::string, std::pmr::vector<int32_t>> arrays;
  std::pmr::vector<float> draft_logits;
  VerifyTreeParams params = {};

  TreeBatch(const std::string& method, const Array<float>& logits, const py::dict& columns, int64_t vocab_size,
            const py::dict& trees)
      : rows(logits, columns) {
    params.method = tree_verify_method(method_by_name(method));
    params.target = rows.params(vocab_size);
    params.row_begin = column(trees, "row_begin", 0);
    params.num_requests = std::ssize(arrays["row_begin"]) - 1;
    E31_CHECK(arrays["row_begin"].back() <= params.target.num_rows, kInvalidArgument, "row_begin ends at ",
              arrays["row_begin"].back(), " of ", params.target.num_rows, " rows");
    params.token_ids = column(trees, "token_ids", params.target.num_rows);
    params.first_child = column(trees, "first_child", params.target.num_rows);
    params.next_sibling = column(trees, "next_sibling", params.target.num_rows);
    if (trees.contains("draft_rows")) params.draft_rows = column(trees, "draft_rows", params.target.num_rows);
    if (trees.contains("draft_to_target")) params.draft_to_target = column(trees, "draft_to_target", 0);
    if (trees.contains("draft_logits")) {
      const auto array = trees["draft_logits"].cast<Array<float>>();
      draft_logits = device_copy(array);
      params.draft_logits = draft_logits.data();
      params.draft_vocab_size = params.draft_logits_stride = array.shape(1);
    }
  }

 private:
  const int32_t* column(const py::dict& trees, const char* name, int64_t size) {
    const auto array = trees[name].cast<Array<int32_t>>();
    E31_CHECK(size == 0 || array.size() == size, kInvalidArgument, name, " has ", array.size(), " entries for ", size);
    return arrays.emplace(name, device_copy(array)).first->second.data();
  }
};

// Returns num_accepted, path_rows and emitted_token_ids.
py::tuple run_verify_tree(const std::string& place_name, const std::string& method, const Array<float>& logits,
                          const py::dict& columns, int64_t vocab_size, const py::dict& trees) {
  const Place place(place_name);
  TreeBatch batch(method, logits, columns, vocab_size, trees);
  VerifyTreeParams& params = batch.params;
  const py::ssize_t num_requests = params.num_requests, num_rows = params.target.num_rows;
  std::pmr::vector<int32_t> num_accepted(num_requests), path_rows(num_rows), emitted(num_rows);
  params.num_accepted = num_accepted.data();
  params.path_rows = path_rows.data();
  params.emitted_token_ids = emitted.data();
  place.run(2, &Ops::verify_tree, reference::verify_tree, params);
  return py::make_tuple(host_copy(num_accepted, {num_requests}), host_copy(path_rows, {num_rows}),
                        host_copy(emitted, {num_rows}));
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
void run_compact_kv(const std::string& place_name, const std::vector<py::array>& keys,
                    const std::vector<py::array>& values, int32_t page_size, bool dims_fastest,
                    const Array<int32_t>& row_begin, const Array<int64_t>& slots, const Array<int32_t>& num_accepted,
                    const Array<int32_t>& path_rows) {
  const Place place(place_name);
  std::pmr::vector<KvCacheView> layers;
  std::vector<std::pmr::vector<std::byte>> copies;
  const auto copy = [&copies](const py::array& array) -> void* {
    const auto* bytes = static_cast<const std::byte*>(array.data());
    return copies.emplace_back(bytes, bytes + array.nbytes()).data();
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    layers.push_back({copy(keys[i]), copy(values[i]), values[i].itemsize() == 4 ? DType::kFloat32 : DType::kBFloat16,
                      values[i].shape(0), page_size, static_cast<int32_t>(values[i].shape(1)),
                      static_cast<int32_t>(values[i].shape(3)),
                      dims_fastest ? KeyLayout::kDimsFastest : KeyLayout::kTokensFastest});
  }
  const auto begin_copy = device_copy(row_begin), accepted_copy = device_copy(num_accepted);
  const auto path_copy = device_copy(path_rows);
  const auto slot_copy = device_copy(slots);
  CompactKvParams params = {};
  params.cache = layers.at(0);
  params.layers = layers.size() > 1 ? layers.data() : nullptr;
  params.num_layers = static_cast<int32_t>(layers.size());
  params.row_begin = begin_copy.data();
  params.slots = slot_copy.data();
  params.num_accepted = accepted_copy.data();
  params.path_rows = path_copy.data();
  params.num_requests = row_begin.size() - 1;
  place.run(2, &Ops::compact_kv, reference::compact_kv, params);
  for (size_t i = 0; i < copies.size(); ++i) {
    py::array array = (i % 2 == 0 ? keys : values)[i / 2];
    std::memcpy(array.mutable_data(), copies[i].data(), copies[i].size());
  }
}

}  // namespace

void bind_testing_tree(py::module_& module) {
  module.attr("MAX_TREE_CANDIDATES") = kMaxTreeCandidates;
  module.attr("MAX_TREE_ROWS") = kMaxTreeRows;
  module.attr("MAX_TRIED_SIBLINGS") = kMaxTriedSiblings;
  module.def("samples_all_rows", cuda::samples_all_rows, py::arg("num_rows"), py::arg("num_requests"));
  module.def("build_tree", run_build_tree, py::arg("place"), py::arg("scores"), py::arg("parents"),
             py::arg("token_ids"), py::arg("candidate_begin"), py::arg("root_token_ids"), py::arg("row_begin"),
             py::arg("mask_words"), py::arg("by_candidate") = false);
  module.def("verify_tree", run_verify_tree, py::arg("place"), py::arg("method"), py::arg("logits"), py::arg("columns"),
             py::arg("vocab_size"), py::arg("trees"));
  module.def("sibling_rules", sibling_rules, py::arg("logits"), py::arg("columns"), py::arg("vocab_size"),
             py::arg("trees"));
  module.def("compact_kv", run_compact_kv, py::arg("place"), py::arg("keys"), py::arg("values"), py::arg("page_size"),
             py::arg("dims_fastest"), py::arg("row_begin"), py::arg("slots"), py::arg("num_accepted"),
             py::arg("path_rows"));
}

}  // namespace eagle31rt
