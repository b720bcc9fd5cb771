// All inline PTX of the project, one small device function for each instruction. sm_80 class: every GPU from A100 on.
//
// Fragments follow the PTX ISA, "Matrix fragments for mma.m16n8k16": with group = lane / 4 and pair = lane % 4 * 2,
//   A (16 x 16, row major)  a[0] = (group, pair), a[1] = (group + 8, pair), a[2] = (group, pair + 8),
//                           a[3] = (group + 8, pair + 8); each register holds two adjacent columns
//   B (16 x 8, "col")       b[0] = (k = pair, n = group), b[1] = (k = pair + 8, n = group); two adjacent k
//   C, D (16 x 8)           d[0], d[1] = (group, pair), (group, pair + 1); d[2], d[3] = the same of row group + 8
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#define E31_DEVICE __device__ __forceinline__

namespace eagle31rt::cuda {

constexpr uint32_t kFullWarp = 0xffffffffu;
constexpr int kWarpSize = 32;

E31_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, past L1; zeros instead if `valid` is false (nothing is read then).
E31_DEVICE void cp_async_16(void* shared, const void* global, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(source_bytes)
               : "memory");
}

// 4 bytes; for rows whose start is only 4-byte aligned.
E31_DEVICE void cp_async_4(void* shared, const void* global, bool valid) {
  const int source_bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(source_bytes)
               : "memory");
}

E31_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Returns when at most kPending of this thread's newest groups are in flight.
template <int kPending>
E31_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Four 8x8 tiles of 16-bit elements; lane i gives the address of row i % 8 of tile i / 8 (16-byte aligned).
E31_DEVICE void ldmatrix_x4(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
}

E31_DEVICE void ldmatrix_x4_transposed(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
}

E31_DEVICE void ldmatrix_x2(uint32_t (&registers)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(shared_address(row))
               : "memory");
}

// d += a @ b, float32 accumulation. The only matrix instruction shape of the project: another shape may add in another
// order on hardware, and a row must not notice how many rows there are.
template <typename Element>
E31_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
E31_DEVICE void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
E31_DEVICE void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats rounded to nearest even and packed; `low` in the lower half.
template <typename Element>
E31_DEVICE uint32_t pack_pair(float low, float high);

template <>
E31_DEVICE uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
E31_DEVICE uint32_t pack_pair<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace eagle31rt::cuda
