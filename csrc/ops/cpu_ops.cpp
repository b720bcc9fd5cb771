#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/cpu/cpu_features.h"
#include "ops/ops.h"

namespace eagle31rt {

#ifdef E31_HAVE_X86_VARIANTS
namespace avx2 {
extern const Ops kOps;
}
namespace avx512 {
extern const Ops kOps;
}
#endif
namespace generic {
extern const Ops kOps;
}

namespace {

std::vector<const Ops*> find_available() {
  std::vector<const Ops*> list;
#ifdef E31_HAVE_X86_VARIANTS
  const CpuFeatures features = detect_cpu_features();
  if (features.avx512) list.push_back(&avx512::kOps);
  if (features.avx2) list.push_back(&avx2::kOps);
#endif
  list.push_back(&generic::kOps);
  return list;
}

const std::vector<const Ops*>& available() {
  static const std::vector<const Ops*> list = find_available();
  return list;
}

const Ops& choose() {
  const char* wanted = std::getenv("EAGLE31RT_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return *available().front();
  std::string names;
  for (const Ops* ops : available()) {
    if (std::string(ops->name) == wanted) return *ops;
    names += std::string(names.empty() ? "" : ", ") + ops->name;
  }
  fail(ErrorCode::kInvalidArgument, "EAGLE31RT_CPU_ISA is \"", wanted, "\"; this build and processor have: ", names);
}

}  // namespace

const Ops& cpu_ops() {
  static const Ops& ops = choose();
  return ops;
}

OpsList available_cpu_ops() { return {available().data(), static_cast<int>(available().size())}; }

}  // namespace eagle31rt
