// What operators of the CPU read from memory, for tests/test_bytes_read.py and bench/families.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_rows.h"
#include "bindings/testing_target.h"
#include "ops/linear/row_groups.h"
#include "ops/mla_attention/latent_splits.h"

namespace eagle31rt {

namespace {

struct BytesRead {
  int64_t latent = 0;
  int64_t experts = 0;
};

int64_t latent_bytes(const MlaAttentionParams& p) {
  return latent_entries_read(p) * p.cache.entry_dim() * dtype_size(p.cache.dtype);
}

// Of every chosen expert its weight, once for each group of its rows.
int64_t expert_bytes(const ExpertLinearParams& p, int num_threads) {
  const int64_t block_rows = std::string(cpu_ops().name) == "avx512" ? 12 : 6;
  int64_t num_chosen = 0, num_streams = 0;
  const auto rows_of = [&](int64_t expert) { return int64_t{p.expert_begin[expert + 1] - p.expert_begin[expert]}; };
  for (int64_t expert = 0; expert < p.num_experts; ++expert) num_chosen += rows_of(expert) > 0;
  const RowGroups groups = {block_rows, p.weight.in_features, p.weight.num_panels() * num_chosen, num_threads};
  for (int64_t expert = 0; expert < p.num_experts; ++expert) num_streams += num_row_groups(groups, rows_of(expert));
  return num_streams * p.expert_stride;
}

BytesRead bytes_read;  // since the last start; tests call from one thread

// The operators of the CPU; those that read the latent cache or experts are counted on their way.
Ops counting_ops() {
  Ops ops = cpu_ops();
  ops.mla_attention = [](const MlaAttentionParams& params, ExecutionContext& context) {
    bytes_read.latent += latent_bytes(params);
    cpu_ops().mla_attention(params, context);
  };
  ops.expert_linear = [](const ExpertLinearParams& params, ExecutionContext& context) {
    bytes_read.experts += expert_bytes(params, context.pool.num_threads());
    cpu_ops().expert_linear(params, context);
  };
  return ops;
}

// Of each chunk: a dict of the bytes that its pass through the target reads.
std::vector<py::dict> bytes_of_chunks(const std::string& model, const std::vector<int32_t>& tokens,
                                      const std::vector<int32_t>& chunks, const std::string& kv_dtype,
                                      int num_threads) {
  constexpr int32_t kPageSize = 16;
  const Ops ops = counting_ops();
  ThreadPool pool(num_threads);
  ExecutionContext context{pool, ops};
  LoadedTarget target(model, "auto", kv_dtype, {}, static_cast<int64_t>(tokens.size()), kPageSize);
  std::vector<py::dict> result;
  int32_t first = 0;
  for (int32_t count : chunks) {
    E31_CHECK(count > 0 && static_cast<size_t>(first + count) <= tokens.size(), kInvalidArgument,
              "chunks must add up to at most ", tokens.size(), " tokens");
    bytes_read = {};
    target.feed(tokens, first, count, kPageSize, nullptr, nullptr, context);
    first += count;
    result.push_back(py::dict(py::arg("latent") = bytes_read.latent, py::arg("experts") = bytes_read.experts));
  }
  return result;
}

int64_t entries_of_call(const std::vector<int32_t>& row_begin, const std::vector<int32_t>& kv_begin,
                        const std::vector<int32_t>& kv_length, const std::optional<Array<uint64_t>>& ancestor_mask) {
  MlaAttentionParams params{};
  params.row_begin = row_begin.data();
  params.kv_begin = kv_begin.data();
  params.kv_length = kv_length.data();
  params.num_requests = static_cast<int64_t>(kv_length.size());
  if (ancestor_mask) {
    params.ancestor_mask = ancestor_mask->data();
    params.mask_words = static_cast<int32_t>(ancestor_mask->shape(1));
  }
  return latent_entries_read(params);
}

}  // namespace

void bind_testing_bytes(py::module_& module) {
  module.def("latent_entries_read", &entries_of_call, py::arg("row_begin"), py::arg("kv_begin"), py::arg("kv_length"),
             py::arg("ancestor_mask") = py::none(),
             "Entries of the latent cache that one call of mla_attention on the CPU reads");
  module.def("bytes_of_chunks", &bytes_of_chunks, py::arg("model_dir"), py::arg("token_ids"), py::arg("chunks"),
             py::arg("kv_cache_dtype") = "auto", py::arg("num_threads") = 1,
             "Bytes that the target's pass over each chunk reads: latent cache, weights of experts");
}

}  // namespace eagle31rt
