#include "checker.h"

namespace ptxsim {

void note_allocation(const std::byte*, size_t) {}
void mark_initialised(const void*, size_t) {}

}  // namespace ptxsim
