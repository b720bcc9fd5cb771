// The operator table of one instruction-set variant; compiled once per variant, like every cpu.cpp.
#include "ops/ops.h"

namespace eagle31rt::E31_ISA {

#define E31_DECLARE(op, Params) void op(const Params&, ExecutionContext&);
E31_FOR_EACH_OP(E31_DECLARE)
#undef E31_DECLARE

#define E31_STRING(x) #x
#define E31_NAME(x) E31_STRING(x)
#define E31_ENTRY(op, Params) .op = op,

extern const Ops kOps;
const Ops kOps = {.name = E31_NAME(E31_ISA), E31_FOR_EACH_OP(E31_ENTRY)};

}  // namespace eagle31rt::E31_ISA
