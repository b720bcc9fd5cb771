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
#include "ops/mla_attention/latent_splits.h"

namespace eagle31rt {

namespace {

struct BytesRead {
  int64_t latent = 0;
};

int64_t latent_bytes(const MlaAttentionParams& p) {
  return latent_entries_read(p) * p.cache.entry_dim() * dtype_size(p.cache.dtype);
}

BytesRead bytes_read;  // since the last start; tests call from one thread

// The operators of the CPU; those that read the latent cache or experts are counted on their way.
Ops counting_ops() {
  Ops ops = cpu_ops();
  ops.mla_attention = [](const MlaAttentionParams& params, ExecutionContext& context) {
    bytes_read.latent += latent_bytes(params);
    cpu_ops().mla_attention(params, context);
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
    result.push_back(py::dict(py::arg("latent") = bytes_read.latent));
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
             "Bytes that the target's pass over each chunk reads: latent");
}

}  // namespace eagle31rt
