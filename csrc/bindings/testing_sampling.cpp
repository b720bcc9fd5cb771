// Philox, exp and log, the sampling law, chain verification and top_k, for tests/test_philox.py, test_numerics.py,
// test_op_sample.py, test_op_top_k.py, test_verification_law.py and test_cuda_sampling.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/numerics.h"
#include "base/philox.h"
#include "bindings/testing.h"
#include "bindings/testing_rows.h"
#include "device/execution_context.h"
#include "ops/ops.h"
#include "ops/sample/exp_variants.h"
#include "ops/sample/reference_law.h"
#include "ops/verify_chain/reference_rules.h"
#include "ops/verify_chain/rules.h"

#define E31_ISA testing  // the templates of the operators, to draw with chosen bits
#include "ops/sample/row_law.h"

namespace eagle31rt {

namespace {

Array<float> exponentials(const Array<float>& x, const std::string& instruction_set) {
  Array<float> y(x.size());
  if (instruction_set == "scalar") {
    for (py::ssize_t i = 0; i < x.size(); ++i) y.mutable_data()[i] = numerics::exp_float(x.data()[i]);
  } else {
    exp_variant(ops_by_name(instruction_set).name)(x.data(), y.mutable_data(), x.size());
  }
  return y;
}

Array<float> logarithms(const Array<float>& x) {
  Array<float> y(x.size());
  std::transform(x.data(), x.data() + x.size(), y.mutable_data(), numerics::log_float);
  return y;
}

// The ids that the reference and the operators draw from these weights with these 64 bits.
std::pair<int64_t, int64_t> draw_with_bits(const std::vector<uint64_t>& weights, uint64_t bits) {
  E31_CHECK(std::ssize(weights) <= law::kMaxVocabSize, kInvalidArgument, "too many weights");
  auto block = [&weights](int64_t first_id, int64_t count, uint64_t* out) {
    std::copy_n(weights.begin() + first_id, count, out);
  };
  std::vector<uint64_t> block_masses(testing::kMaxBlocks);
  const int64_t size = std::ssize(weights);
  const uint64_t total = testing::sum_blocks(block, size, block_masses.data());
  E31_CHECK(total > 0, kInvalidArgument, "all weights are 0");
  return {reference::draw(weights, bits), testing::draw_id(block, size, block_masses.data(), total, bits)};
}

std::pair<Array<int32_t>, py::object> run_sample(const std::string& instruction_set, const Array<float>& logits,
                                                 const py::dict& columns, int64_t vocab_size, uint32_t purpose,
                                                 uint32_t noise_index, bool weights, int num_threads) {
  const Place place(instruction_set);
  const RowBatch batch(logits, columns);
  SampleParams params = batch.params(vocab_size);
  std::pmr::vector<int32_t> token_ids(params.num_rows);
  std::pmr::vector<uint64_t> law(weights ? params.num_rows * vocab_size : 0);
  params.token_ids = token_ids.data();
  params.purpose = static_cast<NoisePurpose>(purpose);
  params.noise_index = noise_index;
  params.weights = weights ? law.data() : nullptr;
  place.run(num_threads, &Ops::sample, reference::sample, params);
  return {host_copy(token_ids, {params.num_rows}),
          weights ? py::object(host_copy(law, {params.num_rows, vocab_size})) : py::none()};
}

// A batch of chains: a RowBatch plus a dict with row_begin and draft_token_ids and, where they apply, draft_logits,
// draft_to_target and acceptance_rates (verify_chain.h).
struct ChainBatch {
  RowBatch rows;
  std::pmr::vector<int32_t> row_begin, draft_token_ids, draft_to_target;
  std::pmr::vector<float> draft_logits, acceptance_rates;
  VerifyChainParams params = {};

  ChainBatch(VerifyMethod method, const Array<float>& logits, const py::dict& columns, int64_t vocab_size,
             const py::dict& chains)
      : rows(logits, columns),
        row_begin(device_copy(chains["row_begin"].cast<Array<int32_t>>())),
        draft_token_ids(device_copy(chains["draft_token_ids"].cast<Array<int32_t>>())) {
    params.method = method;
    params.target = rows.params(vocab_size);
    params.row_begin = row_begin.data();
    params.draft_token_ids = draft_token_ids.data();
    params.num_requests = std::ssize(row_begin) - 1;
    E31_CHECK(row_begin.back() <= params.target.num_rows && std::ssize(draft_token_ids) == params.target.num_rows,
              kInvalidArgument, "row_begin or draft_token_ids does not fit ", params.target.num_rows, " rows");
    if (chains.contains("draft_logits")) {
      const auto laws = chains["draft_logits"].cast<Array<float>>();
      draft_logits = device_copy(laws);
      params.draft_logits = draft_logits.data();
      params.draft_vocab_size = params.draft_logits_stride = laws.shape(1);
    }
    if (chains.contains("draft_to_target")) {
      draft_to_target = device_copy(chains["draft_to_target"].cast<Array<int32_t>>());
      params.draft_to_target = draft_to_target.data();
    }
    if (chains.contains("acceptance_rates")) {
      acceptance_rates = device_copy(chains["acceptance_rates"].cast<Array<float>>());
      params.acceptance_rates = acceptance_rates.data();
    }
  }
};

std::pair<Array<int32_t>, Array<int32_t>> run_verify_chain(const std::string& instruction_set,
                                                           const std::string& method, const Array<float>& logits,
                                                           const py::dict& columns, int64_t vocab_size,
                                                           const py::dict& chains, int num_threads) {
  const Place place(instruction_set);
  ChainBatch batch(method_by_name(method), logits, columns, vocab_size, chains);
  VerifyChainParams& params = batch.params;
  constexpr int32_t kUntouched = -7;
  std::pmr::vector<int32_t> num_accepted(params.num_requests, kUntouched), emitted(params.target.num_rows, kUntouched);
  params.num_accepted = num_accepted.data();
  params.emitted_token_ids = emitted.data();
  place.run(num_threads, &Ops::verify_chain, reference::verify_chain, params);
  return {host_copy(num_accepted, {params.num_requests}), host_copy(emitted, {params.target.num_rows})};
}

// Returns (values, token ids, log-probabilities), each [num_rows, k].
py::tuple run_top_k(const std::string& instruction_set, const Array<float>& logits, int64_t vocab_size, int32_t k,
                    const std::optional<Array<int32_t>>& draft_to_target, bool log_probabilities, int num_threads) {
  E31_CHECK(vocab_size >= 1 && vocab_size <= logits.shape(1), kInvalidArgument, "vocab_size is ", vocab_size);
  const Place place(instruction_set);
  const std::pmr::vector<float> rows = device_copy(logits);
  const auto map = draft_to_target ? device_copy(*draft_to_target) : std::pmr::vector<int32_t>();
  const int64_t num_rows = logits.shape(0);
  std::pmr::vector<float> values(num_rows * k), logs(log_probabilities ? num_rows * k : 0);
  std::pmr::vector<int32_t> token_ids(num_rows * k);
  const TopKParams params = {.logits = rows.data(),
                             .draft_to_target = draft_to_target ? map.data() : nullptr,
                             .values = values.data(),
                             .token_ids = token_ids.data(),
                             .log_probabilities = log_probabilities ? logs.data() : nullptr,
                             .num_rows = num_rows,
                             .vocab_size = vocab_size,
                             .logits_stride = logits.shape(1),
                             .k = k};
  place.run(num_threads, &Ops::top_k, reference::top_k, params);
  return py::make_tuple(host_copy(values, {num_rows, k}), host_copy(token_ids, {num_rows, k}),
                        log_probabilities ? py::object(host_copy(logs, {num_rows, k})) : py::none());
}

// Per request: acceptance probabilities (coins left out) and, for every number of accepted drafts, the integer weights
// of the token emitted after them.
py::list accept_probabilities(const std::string& method, const Array<float>& logits, const py::dict& columns,
                              int64_t vocab_size, const py::dict& chains) {
  const ChainBatch batch(method_by_name(method), logits, columns, vocab_size, chains);
  py::list out;
  for (int64_t request = 0; request < batch.params.num_requests; ++request) {
    const reference::Acceptance acceptance = reference::chain_acceptance(batch.params, request);
    py::list emissions;
    for (size_t n = 0; n < acceptance.scales.size(); ++n) {
      emissions.append(
          reference::emission_weights(batch.params, request, static_cast<int64_t>(n), acceptance.scales[n]));
    }
    out.append(py::make_tuple(acceptance.probabilities, emissions));
  }
  return out;
}

}  // namespace

void bind_testing_sampling(py::module_& module) {
  module.def("philox4x32", [](std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    const PhiloxBlock out = philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
    return std::array<uint32_t, 4>{out.word[0], out.word[1], out.word[2], out.word[3]};
  });
  module.def("random_bits64", [](uint64_t seed, int64_t position, uint32_t purpose, uint32_t index) {
    return random_bits64(seed, position, static_cast<NoisePurpose>(purpose), index);
  });
  module.def("derive_seed", &derive_seed);
  module.def("exponentials", &exponentials, py::arg("x"), py::arg("instruction_set"));
  module.def("logarithms", &logarithms, py::arg("x"));
  module.def("draw_with_bits", &draw_with_bits, py::arg("weights"), py::arg("bits"));
  module.def("sample", &run_sample, py::arg("instruction_set"), py::arg("logits"), py::arg("columns"),
             py::arg("vocab_size"), py::arg("purpose") = 0, py::arg("noise_index") = 0, py::arg("weights") = false,
             py::arg("num_threads") = 1);
  module.def("verify_chain", &run_verify_chain, py::arg("instruction_set"), py::arg("method"), py::arg("logits"),
             py::arg("columns"), py::arg("vocab_size"), py::arg("chains"), py::arg("num_threads") = 1);
  module.def("top_k", &run_top_k, py::arg("instruction_set"), py::arg("logits"), py::arg("vocab_size"), py::arg("k"),
             py::arg("draft_to_target") = py::none(), py::arg("log_probabilities") = true, py::arg("num_threads") = 1);
  module.def("coin_stands", &rules::stands);
  module.def("accept_probabilities", &accept_probabilities, py::arg("method"), py::arg("logits"), py::arg("columns"),
             py::arg("vocab_size"), py::arg("chains"));
}

}  // namespace eagle31rt
