#include "ops/cuda_backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "eagle31rt/version.h"

namespace eagle31rt {

namespace {

constexpr const char* kLibrary = "libeagle31rt_cuda.so";

// Where the code of this function was loaded from, with a slash at its end; empty if unknown.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

void* open_library() {
  std::string failure;
  const char* chosen = std::getenv("EAGLE31RT_CUDA_LIBRARY");
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  for (const std::string& path :
       is_chosen ? std::vector<std::string>{chosen} : std::vector<std::string>{own_folder() + kLibrary, kLibrary}) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const std::string reason = dlerror();
    // "cannot open libcudart.so.13" says more than that the second place had no library at all.
    if (failure.empty() || reason.find("libcudart") != std::string::npos) failure = reason;
  }
  if (failure.find("libcudart") != std::string::npos) {
    fail(ErrorCode::kDevice, "the CUDA backend needs libcudart.so.13, which was not found (", failure,
         "); install it with `pip install 'eagle31rt[cuda]'` or put CUDA 13's lib folder on LD_LIBRARY_PATH");
  }
  fail(ErrorCode::kDevice, "this installation has no CUDA backend (", failure,
       "); build it with `pip install . -C cmake.define.EAGLE31RT_CUDA=ON` (needs nvcc 13), or use device \"cpu\"");
}

const CudaBackend& load() {
  void* library = open_library();
  using Entry = const CudaBackend* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "eagle31rt_cuda_backend"));
  E31_CHECK(entry != nullptr, kDevice, kLibrary, " does not export eagle31rt_cuda_backend; reinstall eagle31rt");
  const CudaBackend& backend = *entry();
  E31_CHECK(std::string(backend.version) == EAGLE31RT_VERSION, kDevice, kLibrary, " is of version ", backend.version,
            " but the core is ", EAGLE31RT_VERSION, "; reinstall eagle31rt");
  E31_CHECK(backend.fingerprint == backend_fingerprint(), kDevice, kLibrary,
            " was built from other sources than the core; reinstall eagle31rt so that both come from one build");
  return backend;
}

}  // namespace

const CudaBackend& cuda_backend() {
  static const CudaBackend& backend = load();
  return backend;
}

}  // namespace eagle31rt
