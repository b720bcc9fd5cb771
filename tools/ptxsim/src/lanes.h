// Loops over the lanes of a warp. With all lanes active they are loops of constant length over arrays, which the
// compiler turns into vector instructions; otherwise they go from active lane to active lane.
#pragma once

#include <bit>

#include "machine.h"

namespace ptxsim {

template <class F>
inline void for_lanes(Mask mask, F body) {
  for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
}

// destination = F(sources...), lane by lane; operand 0 is the destination. F has no captures.
template <auto F, class D, class A>
void map(Warp& warp, const Instruction& instruction, Mask mask) {
  D* d = warp.lanes<D>(instruction.operand[0]);
  const A* a = warp.lanes<A>(instruction.operand[1]);
  if (mask == kFullMask) {
#pragma GCC ivdep  // a register is read and written at the same lane only
    for (int lane = 0; lane < kWarpSize; ++lane) d[lane] = F(a[lane]);
  } else {
    for_lanes(mask, [&](int lane) { d[lane] = F(a[lane]); });
  }
}

template <auto F, class D, class A, class B>
void map(Warp& warp, const Instruction& instruction, Mask mask) {
  D* d = warp.lanes<D>(instruction.operand[0]);
  const A* a = warp.lanes<A>(instruction.operand[1]);
  const B* b = warp.lanes<B>(instruction.operand[2]);
  if (mask == kFullMask) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpSize; ++lane) d[lane] = F(a[lane], b[lane]);
  } else {
    for_lanes(mask, [&](int lane) { d[lane] = F(a[lane], b[lane]); });
  }
}

template <auto F, class D, class A, class B, class C>
void map(Warp& warp, const Instruction& instruction, Mask mask) {
  D* d = warp.lanes<D>(instruction.operand[0]);
  const A* a = warp.lanes<A>(instruction.operand[1]);
  const B* b = warp.lanes<B>(instruction.operand[2]);
  const C* c = warp.lanes<C>(instruction.operand[3]);
  if (mask == kFullMask) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpSize; ++lane) d[lane] = F(a[lane], b[lane], c[lane]);
  } else {
    for_lanes(mask, [&](int lane) { d[lane] = F(a[lane], b[lane], c[lane]); });
  }
}

template <auto F, class D, class A, class B, class C, class E>
void map(Warp& warp, const Instruction& instruction, Mask mask) {
  D* d = warp.lanes<D>(instruction.operand[0]);
  const A* a = warp.lanes<A>(instruction.operand[1]);
  const B* b = warp.lanes<B>(instruction.operand[2]);
  const C* c = warp.lanes<C>(instruction.operand[3]);
  const E* e = warp.lanes<E>(instruction.operand[4]);
  for_lanes(mask, [&](int lane) { d[lane] = F(a[lane], b[lane], c[lane], e[lane]); });
}

// The lanes of `mask` for which F(a, b) holds.
template <auto F, class T>
Mask compare(const T* a, const T* b, Mask mask) {
  Mask result = 0;
  if (mask == kFullMask) {
    for (int lane = 0; lane < kWarpSize; ++lane) result |= static_cast<Mask>(F(a[lane], b[lane])) << lane;
    return result;
  }
  for_lanes(mask, [&](int lane) { result |= static_cast<Mask>(F(a[lane], b[lane])) << lane; });
  return result;
}

// Writes the lanes of `mask` of a predicate register.
inline void set_predicate(Warp& warp, uint32_t reg, Mask mask, Mask value) {
  Mask& predicate = warp.predicate(reg);
  predicate = (predicate & ~mask) | (value & mask);
}

}  // namespace ptxsim
