// What the files of opcodes share: choosing an instance by the type an opcode names.
#pragma once

#include <string>

#include "../decoder.h"
#include "../formats.h"
#include "../lanes.h"

namespace ptxsim {

// Words that are integer and floating opcodes both ("add", "min", ...): true if the opcode names a floating type.
bool has_floating_type(Decoder& decoder);
void decode_floating(Decoder& decoder);  // add, sub, mul, fma, mad, div, min, max, neg, abs

void decode_carry(Decoder& decoder);  // add.cc, addc, sub.cc, subc, mad.cc, madc

// make.template operator()<T>() for the C++ type of an integer type; calls unknown() for others.
template <class Make>
Execute for_integer(Decoder& decoder, const std::string& type, Make make) {
  if (type == "s16") return make.template operator()<int16_t>();
  if (type == "u16" || type == "b16") return make.template operator()<uint16_t>();
  if (type == "s32") return make.template operator()<int32_t>();
  if (type == "u32" || type == "b32") return make.template operator()<uint32_t>();
  if (type == "s64") return make.template operator()<int64_t>();
  if (type == "u64" || type == "b64") return make.template operator()<uint64_t>();
  decoder.unknown();
}

// The same for types of bits only.
template <class Make>
Execute for_bits(Decoder& decoder, uint32_t bytes, Make make) {
  if (bytes == 1) return make.template operator()<uint8_t>();
  if (bytes == 2) return make.template operator()<uint16_t>();
  if (bytes == 4) return make.template operator()<uint32_t>();
  if (bytes == 8) return make.template operator()<uint64_t>();
  decoder.unknown();
}

// Emits "op d, a, b, ..." with all operands of `bytes` bytes.
void emit_uniform(Decoder& decoder, Execute execute, uint32_t bytes, size_t num_operands);

}  // namespace ptxsim
