// ld, st, prefetch, fences.
#include <cstring>

#include "../access.h"
#include "../counters.h"
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

template <class T, size_t kCount>
void load(Warp& warp, const Instruction& instruction, Mask mask) {
  uint64_t addresses[kWarpSize];
  gather_addresses(warp, instruction, addresses);
  resolve(warp, instruction, mask, instruction.mode != 0 ? Access::kStrongLoad : Access::kLoad, sizeof(T) * kCount,
          addresses);
  T* d[kCount];
  for (size_t i = 0; i < kCount; ++i) d[i] = warp.lanes<T>(instruction.operand[i]);
  if (kCount == 1 && mask == kFullMask && is_contiguous(addresses, sizeof(T))) {
    std::memcpy(d[0], reinterpret_cast<const void*>(addresses[0]), kWarpSize * sizeof(T));
    return;
  }
  for_lanes(mask, [&](int lane) {
    T values[kCount];
    std::memcpy(values, reinterpret_cast<const void*>(addresses[lane]), sizeof values);
    for (size_t i = 0; i < kCount; ++i) d[i][lane] = values[i];
  });
}

template <class T, size_t kCount>
void store(Warp& warp, const Instruction& instruction, Mask mask) {
  uint64_t addresses[kWarpSize];
  gather_addresses(warp, instruction, addresses);
  resolve(warp, instruction, mask, instruction.mode != 0 ? Access::kStrongStore : Access::kStore, sizeof(T) * kCount,
          addresses);
  const T* s[kCount];
  for (size_t i = 0; i < kCount; ++i) s[i] = warp.lanes<T>(instruction.operand[i]);
  if (kCount == 1 && mask == kFullMask && is_contiguous(addresses, sizeof(T))) {
    std::memcpy(reinterpret_cast<void*>(addresses[0]), s[0], kWarpSize * sizeof(T));
    return;
  }
  for_lanes(mask, [&](int lane) {
    T values[kCount];
    for (size_t i = 0; i < kCount; ++i) values[i] = s[i][lane];
    std::memcpy(reinterpret_cast<void*>(addresses[lane]), values, sizeof values);
  });
}

template <bool kStore>
Execute access_instance(Decoder& decoder, uint32_t bytes, size_t count) {
  return for_bits(decoder, bytes, [&]<class T>() -> Execute {
    if (count == 1) return kStore ? store<T, 1> : load<T, 1>;
    if (count == 2) return kStore ? store<T, 2> : load<T, 2>;
    if (count == 4) return kStore ? store<T, 4> : load<T, 4>;
    if (count == 8) return kStore ? store<T, 8> : load<T, 8>;
    decoder.unknown();
  });
}

Space take_space(Modifiers& modifiers) {
  static const std::pair<const char*, Space> spaces[] = {
      {"global", Space::kGlobal},      {"shared", Space::kShared},    {"shared::cta", Space::kShared},
      {"local", Space::kLocal},        {"const", Space::kConst},      {"param", Space::kParam},
      {"param::entry", Space::kParam}, {"param::func", Space::kParam}};
  for (const auto& [name, space] : spaces) {
    if (modifiers.take(name)) return space;
  }
  return Space::kGeneric;
}

// Scopes and hints do not change what a sequential machine does. Taken by name, so that a new one is seen. Returns
// whether the access is strong: such ones do not race with each other.
bool take_hints(Modifiers& modifiers) {
  const bool strong = !modifiers.take_any({"volatile", "relaxed", "acquire", "release"}).empty();
  modifiers.take("weak");
  modifiers.take_any({"cta", "cluster", "gpu", "sys"});
  modifiers.take_any({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  modifiers.take("nc");
  modifiers.take_any(
      {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
  modifiers.take_any({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
  modifiers.take_any({"L2::64B", "L2::128B", "L2::256B"});
  modifiers.take("L2::cache_hint");
  return strong;
}

template <bool kStore>
void decode_access(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const Space space = take_space(modifiers);
  const bool strong = take_hints(modifiers);
  const std::string vector = modifiers.take_any({"v2", "v4", "v8"});
  const size_t count = vector.empty() ? 1 : static_cast<size_t>(vector[1] - '0');
  const std::string type = modifiers.take_type();
  const uint32_t bytes = type_bytes(type);
  const Execute execute = access_instance<kStore>(decoder, bytes, count);
  const Operand& value = decoder.operand(kStore ? 1 : 0);
  if (count > 1 && (value.kind != Operand::Kind::kVector || value.elements.size() != count))
    decoder.fail("a vector is expected");
  std::array<uint32_t, 8> registers{};
  for (size_t i = 0; i < count; ++i) {
    const Operand& element = count == 1 && value.kind != Operand::Kind::kVector ? value : value.elements.at(i);
    registers[i] =
        kStore ? decoder.wide_source(element, bytes) : decoder.wide_destination(element, bytes, type[0] == 's');
  }
  const Operand address = decoder.operand(kStore ? 0 : 1);
  const auto where = decoder.address(address);
  Instruction& instruction = decoder.emit(execute);
  std::copy(registers.begin(), registers.end(), instruction.operand.begin());
  instruction.space = space;
  instruction.mode = strong;
  instruction.address = where.reg;
  instruction.address_bytes = static_cast<uint8_t>(where.bytes);
  instruction.immediate = where.offset;
}

// Fences order nothing here: a block is executed by one thread of the host. The checker looks at those of the device.
void decode_fence(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  modifiers.take_any({"acq_rel", "sc", "mbarrier_init", "proxy"});
  modifiers.take_any({"async", "async::global", "async::shared::cta", "alias", "tensormap::generic"});
  modifiers.take_any({"release", "acquire"});
  const std::string scope = modifiers.take_any({"cta", "cluster", "gpu", "gl", "sys", "global", "shared::cta"});
  const bool device = scope == "gpu" || scope == "gl" || scope == "sys";
  decoder
      .emit([](Warp& warp, const Instruction& instruction, Mask) {
        Checker* const checker = warp.block->launch->checker;
        if (checker != nullptr && instruction.mode != 0) checker->device_fence();
      })
      .mode = device;
}

void decode_prefetch(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  modifiers.take_any({"global", "local", "const", "param", "tensormap"});
  modifiers.take_any({"L1", "L2", "L2::evict_last", "L2::evict_normal"});
  decoder.emit([](Warp&, const Instruction&, Mask) {});
}

}  // namespace

void add_memory_opcodes(OpcodeTable& table) {
  table["ld"] = table["ldu"] = decode_access<false>;
  table["st"] = decode_access<true>;
  table["membar"] = table["fence"] = decode_fence;
  table["prefetch"] = table["prefetchu"] = table["applypriority"] = decode_prefetch;
}

}  // namespace ptxsim
