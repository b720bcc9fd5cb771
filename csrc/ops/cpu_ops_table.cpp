// The operator table of one instruction-set variant; compiled once per variant, like every cpu.cpp.
#include "ops/ops.h"

namespace eagle31rt::E31_ISA {

void embedding(const EmbeddingParams&, ExecutionContext&);
void rms_norm(const RmsNormParams&, ExecutionContext&);
void linear(const LinearParams&, ExecutionContext&);
void rope(const RopeParams&, ExecutionContext&);
void kv_append(const KvAppendParams&, ExecutionContext&);
void paged_attention(const PagedAttentionParams&, ExecutionContext&);
void silu_mul(const SiluMulParams&, ExecutionContext&);
void fc_norm(const FcNormParams&, ExecutionContext&);
void sample(const SampleParams&, ExecutionContext&);
void verify_chain(const VerifyChainParams&, ExecutionContext&);

#define E31_STRING(x) #x
#define E31_NAME(x) E31_STRING(x)

extern const Ops kOps;
const Ops kOps = {E31_NAME(E31_ISA), embedding, rms_norm, linear, rope,        kv_append,
                  paged_attention,   silu_mul,  fc_norm,  sample, verify_chain};

}  // namespace eagle31rt::E31_ISA
