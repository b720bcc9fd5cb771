// What the passes of a step on the device share.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "device/execution_context.h"
#include "engine/device_state.h"
#include "model/decoder.h"
#include "model/eagle_draft.h"
#include "model/kv_storage.h"
#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt {

struct DeviceModels {
  Decoder& decoder;
  KvStorage& kv;
  EagleDraft* draft;    // null: plain decoding
  KvStorage* draft_kv;  // null without a draft
  ExecutionContext& context;
  Device& device;
};

struct DeviceStepConfig {
  int32_t max_num_seqs;
  int32_t page_size;
  int32_t max_model_len;
  int32_t max_drafts;       // K, 0 without a draft
  int32_t max_prompt_rows;  // of a step
  VerifyMethod method;
  bool draw_drafts;          // at the request's temperature; else the most probable
  std::vector<float> rates;  // kSynthetic: conditional acceptance rates, max_drafts of them
  bool use_graphs;
};

// Activations that outlive one pass over a model; allocated once, so that graphs may refer to them.
struct StepMemory {
  DeviceBuffer logits;    // float [rows, vocab_size]
  DeviceBuffer captured;  // float [rows, captured size]
  DeviceBuffer feature;   // float [rows, draft hidden size]
  DeviceBuffer results;   // int32, see DeviceRunner
};

}  // namespace eagle31rt
