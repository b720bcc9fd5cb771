// The operators of one backend as a table of functions. There is one table per CPU instruction set (the same cpu.cpp
// files, compiled once for each) and one for CUDA. It is chosen once per process and never by shape,
// because a row's bits may differ between tables.
//
// Every operator is row-exact: the bits of an output row depend on that row's inputs and the weights only, not on the
// number of rows, their order, their neighbours, padding, or the number of threads.
#pragma once

#include "ops/build_tree/build_tree.h"
#include "ops/compact_kv/compact_kv.h"
#include "ops/embedding/embedding.h"
#include "ops/expert_linear/expert_linear.h"
#include "ops/fc_norm/fc_norm.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/kv_append/kv_append.h"
#include "ops/linear/linear.h"
#include "ops/mla_append/mla_append.h"
#include "ops/mla_attention/mla_attention.h"
#include "ops/moe_combine/moe_combine.h"
#include "ops/moe_route/moe_route.h"
#include "ops/paged_attention/paged_attention.h"
#include "ops/process_logits/process_logits.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/sample/sample.h"
#include "ops/silu_mul/silu_mul.h"
#include "ops/step_rows/step_rows.h"
#include "ops/token_logprobs/token_logprobs.h"
#include "ops/top_k/top_k.h"
#include "ops/verify_chain/verify_chain.h"
#include "ops/verify_tree/verify_tree.h"

namespace eagle31rt {

struct ExecutionContext;

// Every operator, by name and parameters. A new operator is a folder, a line here and its include above.
#define E31_FOR_EACH_OP(X)                 \
  X(embedding, EmbeddingParams)            \
  X(gather_rows, GatherRowsParams)         \
  X(rms_norm, RmsNormParams)               \
  X(linear, LinearParams)                  \
  X(rope, RopeParams)                      \
  X(kv_append, KvAppendParams)             \
  X(paged_attention, PagedAttentionParams) \
  X(mla_append, MlaAppendParams)           \
  X(mla_attention, MlaAttentionParams)     \
  X(silu_mul, SiluMulParams)               \
  X(moe_route, MoeRouteParams)             \
  X(expert_linear, ExpertLinearParams)     \
  X(moe_combine, MoeCombineParams)         \
  X(fc_norm, FcNormParams)                 \
  X(sample, SampleParams)                  \
  X(verify_chain, VerifyChainParams)       \
  X(build_tree, BuildTreeParams)           \
  X(verify_tree, VerifyTreeParams)         \
  X(compact_kv, CompactKvParams)           \
  X(top_k, TopKParams)                     \
  X(step_rows, StepRowsParams)             \
  X(process_logits, ProcessLogitsParams)   \
  X(token_logprobs, TokenLogprobsParams)

struct Ops {
  const char* name;  // "generic", "avx2", "avx512", "cuda"
#define E31_MEMBER(op, Params) void (*op)(const Params&, ExecutionContext&);
  E31_FOR_EACH_OP(E31_MEMBER)
#undef E31_MEMBER
};

// The obvious scalar versions, accumulating in double: the specification. One thread.
namespace reference {
#define E31_DECLARE(op, Params) void op(const Params& params);
E31_FOR_EACH_OP(E31_DECLARE)
#undef E31_DECLARE
}  // namespace reference

// The best table that this processor can run, chosen at the first call and the same ever after. The environment
// variable EAGLE31RT_CPU_ISA (generic | avx2 | avx512) narrows the choice, for debugging and tests; a name that this
// build or processor does not have throws Error(kInvalidArgument).
const Ops& cpu_ops();

// Every table that this build has and this processor can run, best first.
struct OpsList {
  const Ops* const* items;
  int count;
};
OpsList available_cpu_ops();

}  // namespace eagle31rt
