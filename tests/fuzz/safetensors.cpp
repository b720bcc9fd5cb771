// Any bytes as a safetensors file: refused cleanly, or every tensor lies inside the file and has the size it states.
#include "fuzz.h"
#include "model/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eagle31rt;
  return run_untrusted([&] {
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    const Checkpoint checkpoint = Checkpoint::from_memory(bytes, size, "fuzz");
    int64_t total = 0;
    for (const TensorEntry& tensor : checkpoint.tensors()) {
      require(tensor.data >= bytes && tensor.num_bytes >= 0);
      require(tensor.num_bytes <= static_cast<int64_t>(size) - (tensor.data - bytes));
      if (tensor.supported_dtype) require(tensor.num_bytes == tensor.num_elements() * dtype_size(tensor.dtype));
      total += tensor.num_bytes;
      require(checkpoint.find(tensor.name) == &tensor);
    }
    require(total < static_cast<int64_t>(size));
  });
}
