// The operators of one backend as a table of functions. There is one table per CPU instruction set (the same cpu.cpp
// files, compiled once for each) and there will be one per GPU class. It is chosen once per process and never by shape,
// because a row's bits may differ between tables.
//
// Every operator is row-exact: the bits of an output row depend on that row's inputs and the weights only, not on the
// number of rows, their order, their neighbours, padding, or the number of threads.
#pragma once

#include "ops/embedding/embedding.h"
#include "ops/fc_norm/fc_norm.h"
#include "ops/kv_append/kv_append.h"
#include "ops/linear/linear.h"
#include "ops/paged_attention/paged_attention.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/sample/sample.h"
#include "ops/silu_mul/silu_mul.h"
#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt {

struct ExecutionContext;

struct Ops {
  const char* name;  // "generic", "avx2", "avx512"
  void (*embedding)(const EmbeddingParams&, ExecutionContext&);
  void (*rms_norm)(const RmsNormParams&, ExecutionContext&);
  void (*linear)(const LinearParams&, ExecutionContext&);
  void (*rope)(const RopeParams&, ExecutionContext&);
  void (*kv_append)(const KvAppendParams&, ExecutionContext&);
  void (*paged_attention)(const PagedAttentionParams&, ExecutionContext&);
  void (*silu_mul)(const SiluMulParams&, ExecutionContext&);
  void (*fc_norm)(const FcNormParams&, ExecutionContext&);
  void (*sample)(const SampleParams&, ExecutionContext&);
  void (*verify_chain)(const VerifyChainParams&, ExecutionContext&);
};

// The obvious scalar versions, accumulating in double: the specification. One thread.
namespace reference {
void embedding(const EmbeddingParams& params);
void rms_norm(const RmsNormParams& params);
void linear(const LinearParams& params);
void rope(const RopeParams& params);
void kv_append(const KvAppendParams& params);
void paged_attention(const PagedAttentionParams& params);
void silu_mul(const SiluMulParams& params);
void fc_norm(const FcNormParams& params);
void sample(const SampleParams& params);
void verify_chain(const VerifyChainParams& params);
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
