// Names to registers: the part of the decoder that the functions in opcodes/ see most.
#include <cstring>

#include "decoder.h"
#include "lanes.h"

namespace ptxsim {
namespace {

template <class From, class To>
void resize_lanes(Warp& warp, const Instruction& instruction, Mask mask) {
  map<[](From value) { return static_cast<To>(value); }, To, From>(warp, instruction, mask);
}

template <class From>
Execute resize_from(uint32_t to) {
  switch (to) {
    case 1:
      return resize_lanes<From, uint8_t>;
    case 2:
      return resize_lanes<From, uint16_t>;
    case 4:
      return resize_lanes<From, uint32_t>;
    default:
      return resize_lanes<From, uint64_t>;
  }
}

Execute resize(uint32_t from, uint32_t to, bool sign) {
  switch (from) {
    case 1:
      return sign ? resize_from<int8_t>(to) : resize_from<uint8_t>(to);
    case 2:
      return sign ? resize_from<int16_t>(to) : resize_from<uint16_t>(to);
    case 4:
      return sign ? resize_from<int32_t>(to) : resize_from<uint32_t>(to);
    default:
      return resize_from<uint64_t>(to);
  }
}

void invert_predicate(Warp& warp, const Instruction& instruction, Mask mask) {
  Mask& destination = warp.predicate(instruction.operand[0]);
  destination = (destination & ~mask) | (~warp.predicate(instruction.operand[1]) & mask);
}

void add_to_address(Warp& warp, const Instruction& instruction, Mask mask) {
  map<[](uint64_t a, uint64_t b) { return a + b; }, uint64_t, uint64_t, uint64_t>(warp, instruction, mask);
}

const std::map<std::string_view, SpecialRegister>& special_names() {
  using S = SpecialRegister;
  static const std::map<std::string_view, SpecialRegister> names = {
      {"%tid.x", S::kTidX},
      {"%tid.y", S::kTidY},
      {"%tid.z", S::kTidZ},
      {"%ntid.x", S::kNtidX},
      {"%ntid.y", S::kNtidY},
      {"%ntid.z", S::kNtidZ},
      {"%ctaid.x", S::kCtaidX},
      {"%ctaid.y", S::kCtaidY},
      {"%ctaid.z", S::kCtaidZ},
      {"%nctaid.x", S::kNctaidX},
      {"%nctaid.y", S::kNctaidY},
      {"%nctaid.z", S::kNctaidZ},
      {"%laneid", S::kLaneId},
      {"%warpid", S::kWarpId},
      {"%nwarpid", S::kNwarpId},
      {"%smid", S::kSmId},
      {"%nsmid", S::kNsmId},
      {"%gridid", S::kGridId},
      {"%lanemask_eq", S::kLanemaskEq},
      {"%lanemask_le", S::kLanemaskLe},
      {"%lanemask_lt", S::kLanemaskLt},
      {"%lanemask_ge", S::kLanemaskGe},
      {"%lanemask_gt", S::kLanemaskGt},
      {"%dynamic_smem_size", S::kDynamicSharedBytes},
      {"%total_smem_size", S::kTotalSharedBytes},
      {"%clusterid.x", S::kClusterIdX},
      {"%clusterid.y", S::kClusterIdY},
      {"%clusterid.z", S::kClusterIdZ},
      {"%nclusterid.x", S::kNclusterIdX},
      {"%nclusterid.y", S::kNclusterIdY},
      {"%nclusterid.z", S::kNclusterIdZ},
      {"%cluster_ctaid.x", S::kClusterCtaidX},
      {"%cluster_ctaid.y", S::kClusterCtaidY},
      {"%cluster_ctaid.z", S::kClusterCtaidZ},
      {"%cluster_nctaid.x", S::kClusterNctaidX},
      {"%cluster_nctaid.y", S::kClusterNctaidY},
      {"%cluster_nctaid.z", S::kClusterNctaidZ},
      {"%cluster_ctarank", S::kClusterCtarank},
      {"%cluster_nctarank", S::kClusterNctarank},
      {"%is_explicit_cluster", S::kIsExplicitCluster},
  };
  return names;
}

}  // namespace

const Operand& Decoder::operand(size_t index) const {
  if (index >= statement_.operands.size()) fail("too few operands");
  return statement_.operands[index];
}

// Registers lie at multiples of 64 bytes, so that vector loads do not cross cache lines; 16 predicates share 64 bytes.
uint32_t Decoder::allocate_register(uint32_t bytes) {
  if (bytes != kPredicate) {
    const uint32_t offset = kernel_.register_bytes;
    kernel_.register_bytes += (bytes * kWarpSize + 63) / 64 * 64;
    return offset;
  }
  if (predicates_left_ == 0) {
    next_predicate_ = kernel_.register_bytes;
    kernel_.register_bytes += 64;
    predicates_left_ = 64 / sizeof(Mask);
  }
  --predicates_left_;
  next_predicate_ += sizeof(Mask);
  return next_predicate_ - sizeof(Mask);
}

int64_t Decoder::allocate_local(uint32_t size, uint32_t align) {
  const uint32_t offset = (kernel_.local_bytes + align - 1) / align * align;
  kernel_.local_bytes = offset + size;
  return offset;
}

std::optional<Decoder::Register> Decoder::find_register(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  for (int at = scope_; at >= 0; at = scopes_[static_cast<size_t>(at)].parent) {
    Scope& candidate = scopes_[static_cast<size_t>(at)];
    if (const auto found = candidate.registers.find(name); found != candidate.registers.end()) return found->second;
    if (digits == name.size()) continue;
    const auto range = candidate.ranges.find(name.substr(0, digits));
    if (range == candidate.ranges.end()) continue;
    const size_t number = std::stoul(std::string(name.substr(digits)));
    if (number >= range->second.offsets.size()) return std::nullopt;
    uint32_t& offset = range->second.offsets[number];
    if (offset == kNone) offset = allocate_register(range->second.bytes);
    return Register{range->second.bytes, offset};
  }
  return std::nullopt;
}

std::optional<Decoder::Symbol> Decoder::find_symbol(std::string_view name) const {
  for (int at = scope_; at >= 0; at = scopes_[static_cast<size_t>(at)].parent) {
    const auto& symbols = scopes_[static_cast<size_t>(at)].symbols;
    if (const auto found = symbols.find(name); found != symbols.end()) return found->second;
  }
  if (const auto found = shared_.offsets.find(name); found != shared_.offsets.end()) {
    return Symbol{Space::kShared, found->second, nullptr};
  }
  const auto found = module_.variables.find(name);
  if (found == module_.variables.end() || found->second.address == nullptr) return std::nullopt;
  return Symbol{found->second.space, 0, found->second.address};
}

uint32_t Decoder::symbol_address(const Symbol& symbol, int64_t addend, uint32_t bytes) {
  const auto offset = static_cast<uint64_t>(symbol.offset + addend);
  if (symbol.space == Space::kShared) return constant(offset, bytes);
  if (bytes != 8) fail("an address needs a register of 64 bits");
  if (symbol.address != nullptr) return constant(reinterpret_cast<uint64_t>(symbol.address) + offset, 8);
  const auto base = symbol.space == Space::kLocal ? SpecialRegister::kLocalBase : SpecialRegister::kParameterBase;
  const uint32_t sum = temporary(8);
  emit(add_to_address, {sum, special(base, 8), constant(offset, 8)}).counted = 0;
  return sum;
}

uint32_t Decoder::special(SpecialRegister which, uint32_t bytes) {
  const auto [entry, fresh] = specials_.try_emplace(which, 0);
  if (fresh) {
    const bool wide = which == SpecialRegister::kLocalBase || which == SpecialRegister::kParameterBase;
    entry->second = allocate_register(wide ? 8 : 4);
    kernel_.specials.push_back({entry->second, which});
    if (wide) return entry->second;
  }
  const bool wide = which == SpecialRegister::kLocalBase || which == SpecialRegister::kParameterBase;
  return resized(entry->second, wide ? 8 : 4, bytes);
}

std::optional<uint32_t> Decoder::special_register(std::string_view name, uint32_t bytes) {
  const auto found = special_names().find(name);
  if (found == special_names().end()) return std::nullopt;
  return special(found->second, bytes);
}

uint32_t Decoder::constant(uint64_t value, uint32_t bytes) {
  if (bytes == kPredicate)
    value = value != 0 ? kFullMask : 0;
  else if (bytes < 8)
    value &= (uint64_t{1} << (8 * bytes)) - 1;
  const auto [entry, fresh] = constants_.try_emplace({value, bytes}, 0);
  if (fresh) {
    entry->second = allocate_register(bytes);
    kernel_.constants.push_back({entry->second, bytes, value});
  }
  return entry->second;
}

uint32_t Decoder::temporary(uint32_t bytes) { return allocate_register(bytes); }

uint32_t Decoder::resized(uint32_t reg, uint32_t from, uint32_t to) {
  if (from == to) return reg;
  const uint32_t narrow = temporary(to);
  emit(resize(from, to, false), {narrow, reg}).counted = 0;
  return narrow;
}

uint32_t Decoder::source(const Operand& operand, uint32_t bytes) {
  if (operand.kind == Operand::Kind::kNumber) {
    size_t position = operand.token;
    return constant(parse_literal(module_.tokens, position, bytes), bytes);
  }
  if (operand.kind != Operand::Kind::kName) fail("an operand of another kind is expected");
  if (const auto reg = find_register(operand.name)) {
    if (reg->bytes != bytes) fail("register " + std::string(operand.name) + " has the wrong width");
    if (!operand.negated) return reg->offset;
    if (bytes != kPredicate) fail("'!' before a register that is no predicate");
    const uint32_t inverted = temporary(kPredicate);
    emit(invert_predicate, {inverted, reg->offset}).counted = 0;
    return inverted;
  }
  if (const auto reg = special_register(operand.name, bytes)) return *reg;
  if (const auto symbol = find_symbol(operand.name)) return symbol_address(*symbol, operand.offset, bytes);
  if (operand.name == "WARP_SZ") return constant(kWarpSize, bytes);
  fail("'" + std::string(operand.name) + "' is not declared");
}

uint32_t Decoder::destination(const Operand& operand, uint32_t bytes) {
  if (operand.kind != Operand::Kind::kName) fail("the destination is not a register");
  if (operand.name == "_") return temporary(bytes);
  const auto reg = find_register(operand.name);
  if (!reg) fail("'" + std::string(operand.name) + "' is not declared");
  if (reg->bytes != bytes) fail("register " + std::string(operand.name) + " has the wrong width");
  return reg->offset;
}

uint32_t Decoder::wide_source(const Operand& operand, uint32_t bytes) {
  if (operand.kind == Operand::Kind::kName) {
    const auto reg = find_register(operand.name);
    if (reg && reg->bytes > bytes) return resized(reg->offset, reg->bytes, bytes);
  }
  return source(operand, bytes);
}

uint32_t Decoder::wide_destination(const Operand& operand, uint32_t bytes, bool sign_extend) {
  if (operand.kind == Operand::Kind::kName) {
    const auto reg = find_register(operand.name);
    if (reg && reg->bytes > bytes) {
      widenings_.push_back({temporary(bytes), bytes, reg->offset, reg->bytes, sign_extend});
      return widenings_.back().from;
    }
  }
  return destination(operand, bytes);
}

void Decoder::flush_widenings() {
  for (const Widening& w : widenings_) emit(resize(w.from_bytes, w.to_bytes, w.sign), {w.to, w.from}).counted = 0;
  widenings_.clear();
}

bool Decoder::is_predicate(const Operand& operand) {
  const auto reg = operand.kind == Operand::Kind::kName ? find_register(operand.name) : std::nullopt;
  return reg && reg->bytes == kPredicate;
}

uint64_t Decoder::literal(const Operand& operand) const {
  if (operand.kind != Operand::Kind::kNumber) fail("a literal is expected");
  size_t position = operand.token;
  return parse_literal(module_.tokens, position, 8);
}

Decoder::Address Decoder::address(const Operand& operand) {
  if (operand.kind != Operand::Kind::kAddress) fail("an address is expected");
  if (operand.name.empty()) return {constant(0, 8), 8, operand.offset};
  if (const auto reg = find_register(operand.name)) {
    if (reg->bytes != 4 && reg->bytes != 8) fail("an address needs a register of 32 or 64 bits");
    return {reg->offset, reg->bytes, operand.offset};
  }
  const auto symbol = find_symbol(operand.name);
  if (!symbol) fail("'" + std::string(operand.name) + "' is not declared");
  if (symbol->space == Space::kShared) return {constant(0, 4), 4, symbol->offset + operand.offset};
  if (symbol->address != nullptr) return {constant(reinterpret_cast<uint64_t>(symbol->address), 8), 8, operand.offset};
  const auto base = symbol->space == Space::kLocal ? SpecialRegister::kLocalBase : SpecialRegister::kParameterBase;
  return {special(base, 8), 8, symbol->offset + operand.offset};
}

void Decoder::set_address(Instruction& instruction, const Operand& operand) {
  const Address where = address(operand);
  instruction.address = where.reg;
  instruction.address_bytes = static_cast<uint8_t>(where.bytes);
  instruction.immediate = where.offset;
}

}  // namespace ptxsim
