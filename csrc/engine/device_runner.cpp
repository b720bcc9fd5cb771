#include "engine/device_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace eagle31rt {

namespace {

// A request that the draft does not feed may read as far behind its last page as a step has rows.
int32_t pages_per_slot(const DeviceStepConfig& config) {
  return (config.max_model_len + config.max_drafts + config.page_size) / config.page_size;
}

int64_t decode_rows(const DeviceStepConfig& config) { return int64_t{config.max_num_seqs} * (config.max_drafts + 1); }

// Of both kinds of requests; prompts that end have two each.
int64_t max_results(const DeviceStepConfig& config) {
  return int64_t{config.max_num_seqs} * (config.max_drafts + 2) + int64_t{config.max_num_seqs} * 2;
}

DeviceBuffer floats(Device& device, int64_t count) { return {device, static_cast<size_t>(count) * sizeof(float)}; }

StepMemory make_memory(const DeviceModels& models, const DeviceStepConfig& config) {
  const int64_t rows = std::max<int64_t>(decode_rows(config), config.max_prompt_rows);
  StepMemory memory;
  memory.logits = floats(models.device, decode_rows(config) * models.decoder.config().vocab_size);
  memory.results = {models.device, static_cast<size_t>(max_results(config)) * sizeof(int32_t)};
  if (models.draft == nullptr) return memory;
  memory.captured = floats(models.device, rows * models.decoder.captured_size());
  memory.feature = floats(models.device, rows * models.draft->config().hidden_size);
  return memory;
}

}  // namespace

DeviceRunner::DeviceRunner(const DeviceModels& models, DeviceStepConfig config)
    : models_(models),
      config_(std::move(config)),
      state_(models.device, config_.max_num_seqs, pages_per_slot(config_), config_.page_size,
             models.draft == nullptr ? 0 : models.draft->config().hidden_size),
      memory_(make_memory(models, config_)),
      // Twice: requests with and without drafts may need a pass each.
      host_results_(models.device, 2 * static_cast<size_t>(max_results(config_)) * sizeof(int32_t)),
      decode_(models_, config_, state_, memory_),
      prompts_(models_, config_, state_, memory_) {
  const int64_t rows = std::max<int64_t>(decode_rows(config_), config_.max_prompt_rows);
  models_.decoder.reserve(rows, decode_rows(config_));
  if (models_.draft != nullptr) models_.draft->reserve(rows);
}

void DeviceRunner::enter(const RequestState& request) {
  state_.enter(request.slot, {.pages = request.pages,
                              .length = request.length(),
                              .last_token = request.tokens.back(),
                              .first_draft_entry = request.is_drafting ? request.first_draft_entry : 0,
                              .sampling = sampling_row(request, 0)});
}

void DeviceRunner::run(std::span<ScheduledRequest> decode, std::span<ScheduledRequest> prompts) {
  for (const ScheduledRequest& entry : decode) state_.set_pages(entry.request->slot, entry.request->pages);
  // Without drafts every method is the plain sampler, so under another method such requests take a pass of their own.
  // They are few: a request whose last token is due, or that asked for no drafts.
  size_t first = 0;
  int64_t num_read = 0;
  if (config_.method != VerifyMethod::kEquality) {
    const auto drafted = std::stable_partition(decode.begin(), decode.end(),
                                               [](const ScheduledRequest& entry) { return entry.num_drafts == 0; });
    first = static_cast<size_t>(drafted - decode.begin());
    if (first > 0 && first < decode.size()) {
      num_read = run_decode(decode.first(first));
      read_back(0, num_read);
      take_decode_results(decode.first(first), 0);
    } else {
      first = 0;
    }
  }
  const std::span<ScheduledRequest> rest = decode.subspan(first);
  const int64_t num_decode_results = rest.empty() ? 0 : run_decode(rest);
  int64_t num_results = num_decode_results;
  if (!prompts.empty()) {
    prompts_.launch(prompts, memory_.results.as<int32_t>() + num_results);
    num_results +=
        2 * std::count_if(prompts.begin(), prompts.end(), [](const auto& entry) { return entry.needs_logits; });
  }
  read_back(num_read, num_results);
  take_decode_results(rest, num_read);
  take_prompt_results(prompts, num_read + num_decode_results);
}

int64_t DeviceRunner::run_decode(std::span<ScheduledRequest> decode) {
  decode_.launch(decode);
  return int64_t{decode_.num_requests()} * (decode_.rows_per_request() + 1);
}

void DeviceRunner::read_back(int64_t host_offset, int64_t num_results) {
  models_.device.copy_to_host(host_results_.as<int32_t>() + host_offset, memory_.results.data(),
                              static_cast<size_t>(num_results) * sizeof(int32_t));
  models_.device.synchronize();
}

void DeviceRunner::take_decode_results(std::span<ScheduledRequest> decode, int64_t offset) {
  for (ScheduledRequest& entry : decode) {
    take_result(entry, offset);
    offset += decode_.rows_per_request() + 1;
  }
  if (!decode.empty()) decode_.take_logprobs();
}

void DeviceRunner::take_prompt_results(std::span<ScheduledRequest> prompts, int64_t offset) {
  for (ScheduledRequest& entry : prompts) {
    if (!entry.needs_logits) continue;
    take_result(entry, offset);
    offset += 2;
  }
  if (!prompts.empty()) prompts_.take_logprobs();
}

void DeviceRunner::take_result(ScheduledRequest& entry, int64_t offset) {
  entry.num_accepted = results()[offset];
  entry.first_logit_row = static_cast<int32_t>(offset) + 1;
}

}  // namespace eagle31rt
