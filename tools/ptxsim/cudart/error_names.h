#pragma once

namespace cudart {

const char* error_name(int code);  // "cudaErrorIllegalAddress"
const char* error_text(int code);  // "an illegal memory access was encountered"

}  // namespace cudart
