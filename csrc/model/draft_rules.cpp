#include "model/draft_rules.h"

#include <initializer_list>
#include <iterator>

#include "base/check.h"

namespace eagle31rt {
namespace {

constexpr uint64_t bits(std::initializer_list<Rule> rules) {
  uint64_t result = 0;
  for (const Rule rule : rules) result |= bit(rule);
  return result;
}

constexpr const char* kOtherDraft = "use a draft that was trained for this target";
constexpr uint64_t kSizes = bits({Rule::kLayerSizes, Rule::kVocabulary, Rule::kHiddenSize, Rule::kDraftVocabulary});
constexpr uint64_t kGraph = bits({Rule::kArchitecture, Rule::kWholeModel, Rule::kParallelDrafting, Rule::kQuantised,
                                  Rule::kFusion, Rule::kSwitches, Rule::kSwitchTensors, Rule::kTensorNames});

constexpr RuleInfo kRules[] = {
    {Rule::kTargetConfig, "target-config", "the target's config.json describes a model of a supported family",
     "give the folder of a supported target; docs/families.md lists the families"},
    {Rule::kTargetTensors, "target-tensors",
     "the target's safetensors files are complete and hold the tensors that its config.json asks for",
     "download the target again, or give it the config.json that belongs to its weights", bit(Rule::kTargetConfig)},
    {Rule::kMaxModelLen, "max-model-len", "the length to serve is one that the target's positions allow",
     "give a max_model_len from 2 to the target's max_position_embeddings", bit(Rule::kTargetConfig)},
    {Rule::kDraftIsTarget, "draft-is-target", "draft and target are two folders",
     "give the folder of the draft as the speculative model"},
    {Rule::kDraftFormat, "draft-format", "the draft's config.json is JSON of a known format of EAGLE-3 drafts",
     "give a draft of EAGLE-3 or EAGLE-3.1 with its own config.json", bit(Rule::kTargetConfig)},
    {Rule::kArchitecture, "architecture",
     "the draft is an EAGLE-3 or EAGLE-3.1 head with a supported layer, not EAGLE-1, Medusa, DFlash or another kind",
     "use an EAGLE-3 or EAGLE-3.1 draft of a supported graph", bit(Rule::kDraftFormat)},
    {Rule::kWholeModel, "whole-model", "the draft is a head and not a whole model",
     "give the draft's folder, not that of a model", bit(Rule::kDraftFormat)},
    {Rule::kParallelDrafting, "parallel-drafting", "the draft proposes one token after another (no P-EAGLE, no PARD)",
     "use a draft without parallel drafting", bit(Rule::kDraftFormat)},
    {Rule::kGraphOptions, "graph-options",
     "no option of config.json asks for a part of the graph that is not supported, by name",
     "use a draft without that option", bit(Rule::kDraftFormat)},
    {Rule::kQuantised, "quantised-draft", "the draft's weights are not quantised",
     "use the draft in bfloat16, float16 or float32; the target may be quantised all the same",
     bit(Rule::kDraftFormat)},
    {Rule::kSlidingWindow, "sliding-window",
     "layer_types says which layers have a sliding window, and sliding_window its size; none has a latent attention",
     "write layer_types into config.json: for each layer full_attention or sliding_attention, as it was trained",
     bits({Rule::kDraftFormat, Rule::kLayerSizes})},
    {Rule::kLayerSizes, "layer-sizes", "sizes are there, in range and fit each other (heads, head_dim, positions)",
     "correct config.json; the shapes of the tensors tell the sizes", bit(Rule::kDraftFormat)},
    {Rule::kVocabulary, "vocabulary", "the draft's vocab_size is the target's", kOtherDraft, bit(Rule::kDraftFormat)},
    {Rule::kHiddenSize, "hidden-size", "target_hidden_size (without it hidden_size) is the target's hidden_size",
     kOtherDraft, bits({Rule::kDraftFormat, Rule::kLayerSizes})},
    {Rule::kDraftVocabulary, "draft-vocabulary",
     "draft_vocab_size and its alias truncated_vocab_size agree and are at most vocab_size",
     "write the number of rows of lm_head.weight into draft_vocab_size", bits({Rule::kDraftFormat, Rule::kVocabulary})},
    {Rule::kSwitches, "switches",
     "fc_norm, norm_before_fc and norm_output have one value under all their names; at most one norm goes before fc",
     "keep the value that the draft was trained with", bit(Rule::kDraftFormat)},
    {Rule::kNormBeforeResidual, "norm-before-residual", "a file of speculators says norm_before_residual itself",
     "write the value of the training run into config.json", bit(Rule::kDraftFormat)},
    {Rule::kFeedback, "feedback", "the state fed back between draft steps is the one of training",
     "pass feedback=pre or feedback=post, whichever the draft was trained with", bit(Rule::kDraftFormat)},
    {Rule::kDraftLength, "draft-length", "num_speculative_tokens is no more than the draft's own proposal",
     "lower num_speculative_tokens; positions beyond those of training are accepted less", bit(Rule::kDraftFormat)},
    {Rule::kLayerIds, "layer-ids",
     "the captured layers are given or default, ascending, in range, as many as announced, and their numbering is sure",
     "pass capture_layers, or layer_id_convention for ids that can be read in two ways", bit(Rule::kDraftFormat)},
    {Rule::kRope, "rope", "the draft's rotary embedding is of a supported type with valid numbers",
     "correct rope_scaling or rope_parameters in config.json", bits({Rule::kDraftFormat, Rule::kLayerSizes})},
    {Rule::kContextLength, "context-length", "the draft's max_position_embeddings reach the length to serve",
     "serve a shorter max_model_len, or expect fewer accepted tokens in long contexts",
     bits({Rule::kDraftFormat, Rule::kLayerSizes, Rule::kMaxModelLen})},
    {Rule::kDtype, "dtype", "the dtype of config.json is float32, bfloat16 or float16",
     "write the dtype of the tensors into config.json", bit(Rule::kDraftFormat)},
    {Rule::kDraftFiles, "draft-files", "the draft's safetensors files are whole and complete",
     "download the draft again; convert pytorch_model.bin to model.safetensors"},
    {Rule::kTensorNames, "tensor-names", "no weight is there under two names", "remove one of the two tensors",
     bit(Rule::kDraftFiles)},
    {Rule::kSwitchTensors, "switch-tensors",
     "a switch and its tensors come together: fc_norm, norm_before_fc (input_norm.weight), bias (fc.bias)",
     "set the switch as the draft was trained; its tensors are the evidence",
     bits({Rule::kDraftFormat, Rule::kSwitches, Rule::kTensorNames})},
    {Rule::kFusion, "fc", "fc.weight takes the captured states: as many columns as states times target_hidden_size",
     "correct the layer ids or target_hidden_size, or use a draft that was trained for this target",
     bits({Rule::kTensorNames, Rule::kLayerSizes, Rule::kHiddenSize, Rule::kLayerIds})},
    {Rule::kDraftToTarget, "d2t",
     "a smaller vocabulary has d2t: integers, one per draft token, offsets to strictly ascending target ids",
     "export the draft again with d2t[i] = target id - i",
     bits({Rule::kTensorNames, Rule::kVocabulary, Rule::kDraftVocabulary})},
    {Rule::kTargetToDraft, "t2d", "t2d, if there, marks exactly the target ids of d2t",
     "export d2t as offsets (target id - i), not as target ids, or remove a stale t2d", bit(Rule::kDraftToTarget)},
    {Rule::kEmbedding, "embedding", "the draft has an embedding or has the target's width, so that it can share it",
     "store embed_tokens.weight with the draft", bits({Rule::kTensorNames}) | kSizes},
    {Rule::kHead, "head",
     "the draft has lm_head.weight or has the target's width and vocabulary, so that it can share the target's",
     "store lm_head.weight with the draft", bits({Rule::kTensorNames}) | kSizes},
    {Rule::kTensorShapes, "tensor-shapes",
     "every tensor has the shape that config.json gives and a floating-point dtype",
     "correct config.json: the shapes of the tensors tell the sizes", kGraph | kSizes},
    {Rule::kTensorsMissing, "tensors-missing", "no tensor of the graph is missing", "download the draft again",
     kGraph | kSizes},
    {Rule::kTensorsUnused, "tensors-unused", "no tensor would be ignored",
     "use a draft of a supported graph; a part that is left out lowers acceptance silently", kGraph | kSizes},
    {Rule::kTokenizer, "tokenizer", "a tokenizer beside the draft is the target's", kOtherDraft},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (static_cast<size_t>(kRules[i].rule) != i) return false;
  }
  return std::size(kRules) == static_cast<size_t>(Rule::kTokenizer) + 1 && std::size(kRules) <= 64;
}
static_assert(in_order());

}  // namespace

std::span<const RuleInfo> draft_rules() { return kRules; }

const RuleInfo& rule_info(Rule rule) { return kRules[static_cast<size_t>(rule)]; }

bool Findings::check(Rule rule, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    throw Error(error.code(), concat(error.what(), " (rule ", rule_info(rule).id, ")"));
  }
  return true;
}

void Findings::note(Rule, const std::string&) {}

void Findings::resolved(const std::string&, const std::string&, const std::string&) {}

}  // namespace eagle31rt
