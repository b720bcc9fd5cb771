#include "engine/decode_pass.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

template <typename T>
DeviceBuffer make_array(Device& device, int64_t count) {
  return {device, static_cast<size_t>(count) * sizeof(T)};
}

int32_t bucket_of(int64_t num_requests, int32_t max_num_seqs) {
  return std::min(static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(num_requests))), max_num_seqs);
}

bool needs_host(const ScheduledRequest& entry) {
  const SamplingParams& params = entry.request->params;
  return processes_logits(params) || params.num_logprobs >= 0;
}

}  // namespace

DecodePass::DecodePass(const DeviceModels& models, const DeviceStepConfig& config, DeviceState& state,
                       StepMemory& memory)
    : models_(models),
      config_(config),
      state_(state),
      memory_(memory),
      draft_context_{models.context.pool, models.context.ops, nullptr, models.context.device},
      upload_(models.device),
      upload_of_masks_(models.device),
      processors_(models.device, config.method == VerifyMethod::kSynthetic),
      logprobs_(models.device) {
  Device& device = models.device;
  const int64_t requests = config.max_num_seqs, rows = requests * (config.max_drafts + 1);
  page_table_ = make_array<int32_t>(device, requests * state.page_table_stride());
  device.fill(page_table_.data(), 0, page_table_.size());  // rows of padding are never filled
  for (DeviceBuffer* array : {&token_ids_, &positions_, &draft_token_ids_, &emitted_}) {
    *array = make_array<int32_t>(device, rows);
  }
  for (DeviceBuffer* array : {&row_begin_, &kv_begin_, &kv_length_, &drawn_ids_, &num_accepted_}) {
    *array = make_array<int32_t>(device, requests + 1);
  }
  kv_slots_ = make_array<int64_t>(device, rows);
  sampling_ = make_array<SamplingRow>(device, rows);
  last_rows_ = make_array<int32_t>(device, state.num_slots());
  if (!config.rates.empty()) {
    rates_ = DeviceArray<float>(device, config.rates);
    acceptance_rates_ = make_array<float>(device, rows);
  }
  if (models.draft == nullptr) return;
  states_ = make_array<float>(device, requests * models.draft->config().hidden_size);
  device.fill(states_.data(), 0, states_.size());
  const int64_t law_rows = config.draw_drafts ? rows : requests;
  draft_logits_ = make_array<float>(device, law_rows * models.draft->config().draft_vocab_size);
  device.fill(draft_logits_.data(), 0, draft_logits_.size());  // a request's last row has no draft after it
}

void DecodePass::launch(std::span<ScheduledRequest> requests) {
  prepare(requests);
  if (upload_.send()) shapes_.clear();
  logprobs_.clear();
  if (std::ranges::any_of(requests, needs_host)) return run(requests);
  send_masks(requests);
  if (!config_.use_graphs) return run({});
  // Graphs refer to the old places.
  if (memory_epoch_ != models_.device.memory_epoch()) shapes_.clear();
  try {
    run_or_replay(shapes_[shape_]);
  } catch (...) {
    shapes_.clear();  // a shape that failed may have grown half of its memory: it is run before it is recorded again
    throw;
  }
}

void DecodePass::run_or_replay(RecordedShape& recorded) {
  if (!recorded.was_run) {
    memory_epoch_ = models_.device.memory_epoch();
    run({});
    recorded.was_run = true;
    return;
  }
  if (recorded.graph == nullptr) {
    models_.device.begin_capture();
    try {
      run({});
      recorded.graph = models_.device.end_capture();
    } catch (...) {
      models_.device.abandon_capture();
      throw;
    }
  }
  models_.device.launch(*recorded.graph);
  num_graph_launches_ += 1;
}

void DecodePass::prepare(std::span<const ScheduledRequest> requests) {
  const auto count = static_cast<int64_t>(requests.size());
  E31_INVARIANT(count > 0 && count <= config_.max_num_seqs);
  shape_ = {.num_requests = bucket_of(count, config_.max_num_seqs), .rows_per_request = 1};
  request_slots_.assign(static_cast<size_t>(shape_.num_requests), -1);
  num_drafts_.assign(static_cast<size_t>(shape_.num_requests), 0);
  request_of_slot_.assign(static_cast<size_t>(state_.num_slots()), -1);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestState& request = *requests[i].request;
    E31_INVARIANT(request.slot >= 0 && requests[i].num_drafts <= config_.max_drafts);
    request_slots_[i] = request.slot;
    num_drafts_[i] = requests[i].num_drafts;
    request_of_slot_[static_cast<size_t>(request.slot)] = static_cast<int32_t>(i);
    shape_.rows_per_request = std::max(shape_.rows_per_request, requests[i].num_drafts + 1);
    shape_.observes |= request.is_drafting;
  }
  host_draft_ids_.assign(static_cast<size_t>(shape_.num_rows()), -1);
  upload_.clear();
  slots_at_ = upload_.add(request_slots_);
  num_drafts_at_ = upload_.add(num_drafts_);
  request_of_slot_at_ = upload_.add(request_of_slot_);
}

std::span<const int32_t> DecodePass::drafts(size_t request, int32_t count) const {
  const size_t first = request * static_cast<size_t>(shape_.rows_per_request) + 1;
  return count == 0 ? std::span<const int32_t>()
                    : std::span(host_draft_ids_).subspan(first, static_cast<size_t>(count));
}

void DecodePass::send_masks(std::span<const ScheduledRequest> requests) {
  shape_.masks = collect_masks(requests);
  if (!shape_.masks) return;
  upload_of_masks_.clear();
  const auto begin_at = upload_of_masks_.add(masked_begin_);
  const auto ids_at = upload_of_masks_.add(masked_ids_);
  if (upload_of_masks_.send()) shapes_.clear();
  masked_begin_at_ = upload_of_masks_.at(begin_at);
  masked_ids_at_ = upload_of_masks_.at(ids_at);
}

// Fills masked_begin_ and masked_ids_ for every row of the batch; false if no id is held back.
bool DecodePass::collect_masks(std::span<const ScheduledRequest> requests) {
  masked_begin_.assign(1, 0);
  masked_ids_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t place = 0; place < shape_.rows_per_request; ++place) {
      if (place <= requests[i].num_drafts) append_masked_ids(*requests[i].request, drafts(i, place), masked_ids_);
      masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    }
  }
  masked_begin_.resize(static_cast<size_t>(shape_.num_rows()) + 1, masked_begin_.back());
  return !masked_ids_.empty();
}

BatchView DecodePass::view(int64_t rows_per_request) const {
  return {.token_ids = token_ids_.as<int32_t>(),
          .positions = positions_.as<int32_t>(),
          .slots = kv_slots_.as<int64_t>(),
          .row_begin = row_begin_.as<int32_t>(),
          .kv_begin = kv_begin_.as<int32_t>(),
          .kv_length = kv_length_.as<int32_t>(),
          .page_table = page_table_.as<int32_t>(),
          .page_table_stride = state_.page_table_stride(),
          .num_rows = shape_.num_requests * rows_per_request,
          .num_requests = shape_.num_requests};
}

StepRowsParams DecodePass::step_rows(StepRowsMode mode) const {
  StepRowsParams params{};
  params.mode = mode;
  params.state = state_.view();
  params.rows = {.token_ids = token_ids_.as<int32_t>(),
                 .positions = positions_.as<int32_t>(),
                 .slots = kv_slots_.as<int64_t>(),
                 .row_begin = row_begin_.as<int32_t>(),
                 .kv_begin = kv_begin_.as<int32_t>(),
                 .kv_length = kv_length_.as<int32_t>(),
                 .sampling = sampling_.as<SamplingRow>(),
                 .acceptance_rates = acceptance_rates_.as<float>()};
  params.request_slots = upload_.at(slots_at_);
  params.num_drafts = upload_.at(num_drafts_at_);
  params.page_table = page_table_.as<int32_t>();
  params.num_requests = shape_.num_requests;
  params.rows_per_request = shape_.rows_per_request;
  params.page_table_stride = state_.page_table_stride();
  params.page_size = config_.page_size;
  params.draw_drafts = config_.draw_drafts;
  params.drawn_ids = drawn_ids_.as<int32_t>();
  if (models_.draft != nullptr) params.draft_to_target = models_.draft->weights().device_draft_to_target.data();
  params.draft_token_ids = draft_token_ids_.as<int32_t>();
  params.rates = rates_.data();
  params.num_accepted = num_accepted_.as<int32_t>();
  params.emitted_token_ids = emitted_.as<int32_t>();
  params.results = memory_.results.as<int32_t>();
  params.last_rows = last_rows_.as<int32_t>();
  if (shape_.observes) {
    params.request_of_slot = upload_.at(request_of_slot_at_);
  } else if (mode == StepRowsMode::kCommit) {
    params.rows.token_ids = nullptr;
  }
  return params;
}

void DecodePass::run(std::span<ScheduledRequest> requests) {
  ExecutionContext& context = models_.context;
  // Page numbers are 32-bit elements like any other.
  context.ops.gather_rows({.input = reinterpret_cast<const float*>(state_.page_tables()),
                           .indices = upload_.at(slots_at_),
                           .output = page_table_.as<float>(),
                           .num_rows = shape_.num_requests,
                           .num_columns = state_.page_table_stride(),
                           .input_stride = state_.page_table_stride(),
                           .output_stride = state_.page_table_stride()},
                          context);
  if (shape_.rows_per_request > 1) propose();
  context.ops.step_rows(step_rows(StepRowsMode::kVerify), context);
  if (!requests.empty()) read_drafts();
  models_.decoder.forward(
      view(shape_.rows_per_request), {.indices = nullptr, .count = shape_.num_rows()},
      {.logits = memory_.logits.as<float>(), .captured = shape_.observes ? memory_.captured.as<float>() : nullptr},
      models_.kv, context);
  if (!requests.empty()) process_rows(requests);
  verify();
  logprobs_.choose(emitted_.as<int32_t>(), context);
  context.ops.step_rows(step_rows(StepRowsMode::kCommit), context);
  if (shape_.observes) observe();
}

void DecodePass::read_drafts() {
  if (shape_.rows_per_request == 1) return;
  models_.device.copy_to_host(host_draft_ids_.data(), draft_token_ids_.data(),
                              host_draft_ids_.size() * sizeof(int32_t));
  models_.device.synchronize();
}

// The forward pass goes on meanwhile.
void DecodePass::process_rows(std::span<ScheduledRequest> requests) {
  float* logits = memory_.logits.as<float>();
  const int64_t vocab_size = models_.decoder.config().vocab_size, rows = shape_.rows_per_request;
  for (size_t i = 0; i < requests.size(); ++i) logprobs_.add_output(requests[i], static_cast<int64_t>(i) * rows);
  logprobs_.keep(logits, vocab_size, models_.context);
  processors_.clear();
  bool refused = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    ScheduledRequest& entry = requests[i];
    const int64_t first_row = static_cast<int64_t>(i) * rows;
    const auto rows_of_request =
        std::span(host_draft_ids_).subspan(static_cast<size_t>(first_row), static_cast<size_t>(entry.num_drafts) + 1);
    for (const int32_t row :
         processors_.add(*entry.request, chain_tree(rows_of_request), first_row, logits, vocab_size, entry.error)) {
      rows_of_request[static_cast<size_t>(row)] = -1;
      refused = true;
    }
  }
  processors_.apply(logits, vocab_size, models_.context);
  if (refused) {
    models_.device.copy_to_device(draft_token_ids_.data(), host_draft_ids_.data(),
                                  host_draft_ids_.size() * sizeof(int32_t));
  }
  send_masks(requests);
}

void DecodePass::propose() {
  const ScopedTimer timer(models_.context.profiler, Work::kDraft);
  EagleDraft& draft = *models_.draft;
  const int64_t hidden = draft.config().hidden_size, vocab = draft.config().draft_vocab_size;
  const int64_t rows = shape_.rows_per_request;
  float* states = states_.as<float>();
  draft_context_.ops.gather_rows({.input = state_.last_states(),
                                  .indices = upload_.at(slots_at_),
                                  .output = states,
                                  .num_rows = shape_.num_requests,
                                  .num_columns = hidden,
                                  .input_stride = hidden,
                                  .output_stride = hidden},
                                 draft_context_);
  for (int32_t step = 0; step + 1 < rows; ++step) {
    StepRowsParams params = step_rows(StepRowsMode::kDraft);
    params.draft_step = step;
    draft_context_.ops.step_rows(params, draft_context_);
    if (step > 0) draft.forward(view(1), states, *models_.draft_kv, draft_context_);
    float* logits = draft_logits_.as<float>() + (draws() ? step * vocab : 0);
    const int64_t stride = draws() ? rows * vocab : vocab;
    draft.head(states, shape_.num_requests, logits, stride, draft_context_);
    draft_context_.ops.sample({.logits = logits,
                               .rows = sampling_.as<SamplingRow>(),
                               .masked_begin = nullptr,
                               .masked_ids = nullptr,
                               .token_ids = drawn_ids_.as<int32_t>(),
                               .num_rows = shape_.num_requests,
                               .vocab_size = vocab,
                               .logits_stride = stride,
                               .purpose = NoisePurpose::kDraft,
                               .noise_index = static_cast<uint32_t>(step)},
                              draft_context_);
  }
}

void DecodePass::verify() {
  const ScopedTimer timer(models_.context.profiler, Work::kLogits);
  const int64_t vocab = models_.decoder.config().vocab_size;
  VerifyChainParams params{};
  params.method = shape_.rows_per_request > 1 ? config_.method : VerifyMethod::kEquality;
  params.target = {.logits = memory_.logits.as<float>(),
                   .rows = sampling_.as<SamplingRow>(),
                   .masked_begin = shape_.masks ? masked_begin_at_ : nullptr,
                   .masked_ids = shape_.masks ? masked_ids_at_ : nullptr,
                   .token_ids = nullptr,
                   .num_rows = shape_.num_rows(),
                   .vocab_size = vocab,
                   .logits_stride = vocab};
  params.row_begin = row_begin_.as<int32_t>();
  params.draft_token_ids = draft_token_ids_.as<int32_t>();
  if (draws()) {
    params.draft_logits = draft_logits_.as<float>();
    params.draft_vocab_size = params.draft_logits_stride = models_.draft->config().draft_vocab_size;
    params.draft_to_target = models_.draft->weights().device_draft_to_target.data();
  }
  params.acceptance_rates = acceptance_rates_.as<float>();
  params.num_accepted = num_accepted_.as<int32_t>();
  params.emitted_token_ids = emitted_.as<int32_t>();
  params.num_requests = shape_.num_requests;
  models_.context.ops.verify_chain(params, models_.context);
}

// Refused rows and requests without a draft are fused along with the others: their number is not known here.
void DecodePass::observe() {
  const ScopedTimer timer(models_.context.profiler, Work::kDraft);
  EagleDraft& draft = *models_.draft;
  const int64_t hidden = draft.config().hidden_size;
  float* feature = memory_.feature.as<float>();
  draft.fuse(memory_.captured.as<float>(), shape_.num_rows(), feature, draft_context_);
  draft.forward(view(shape_.rows_per_request), feature, *models_.draft_kv, draft_context_);
  draft_context_.ops.gather_rows({.input = feature,
                                  .indices = last_rows_.as<int32_t>(),
                                  .output = state_.last_states(),
                                  .num_rows = state_.num_slots(),
                                  .num_columns = hidden,
                                  .input_stride = hidden,
                                  .output_stride = hidden},
                                 draft_context_);
}

}  // namespace eagle31rt
