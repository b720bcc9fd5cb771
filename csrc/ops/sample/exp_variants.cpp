#include "ops/sample/exp_variants.h"

namespace eagle31rt {

#ifdef E31_HAVE_X86_VARIANTS
namespace avx2 {
void exp_array(const float*, float*, int64_t);
}
namespace avx512 {
void exp_array(const float*, float*, int64_t);
}
#endif
namespace generic {
void exp_array(const float*, float*, int64_t);
}

ExpArray exp_variant(std::string_view instruction_set) {
#ifdef E31_HAVE_X86_VARIANTS
  if (instruction_set == "avx512") return avx512::exp_array;
  if (instruction_set == "avx2") return avx2::exp_array;
#endif
  return instruction_set == "generic" ? generic::exp_array : nullptr;
}

}  // namespace eagle31rt
