// Reader of one safetensors image: 8 bytes of header length (little endian), a JSON header, tensor bytes.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace eagle31rt {

// The tensors in the order of their bytes, each pointing into `data`. Throws Error(kCheckpoint) for every fault listed
// in checkpoint.h; `source` names the file in messages.
std::vector<TensorEntry> parse_safetensors(const std::byte* data, size_t num_bytes, const std::string& source);

}  // namespace eagle31rt
