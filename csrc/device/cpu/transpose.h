// Sixteen rows of sixteen lanes turned into columns, in registers where the instruction set has the shuffles.
#pragma once

#include "device/cpu/simd.h"

namespace eagle31rt::E31_ISA {

namespace {

#if defined(__AVX512F__)

// Pairs of floats, then pairs of pairs inside quarters, then the quarters themselves.
void transpose(Lanes (&rows)[16]) {
  __m512 pairs[16], quads[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      const __m512d a = _mm512_castps_pd(pairs[i + half]), b = _mm512_castps_pd(pairs[i + 2 + half]);
      quads[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      quads[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 low02 = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0x88);
    const __m512 low13 = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0xdd);
    const __m512 high02 = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0x88);
    const __m512 high13 = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0xdd);
    rows[j].v = _mm512_shuffle_f32x4(low02, high02, 0x88);
    rows[4 + j].v = _mm512_shuffle_f32x4(low13, high13, 0x88);
    rows[8 + j].v = _mm512_shuffle_f32x4(low02, high02, 0xdd);
    rows[12 + j].v = _mm512_shuffle_f32x4(low13, high13, 0xdd);
  }
}

#else

void transpose(Lanes (&rows)[16]) {
  alignas(64) float from[16][16], to[16][16];
  for (int i = 0; i < 16; ++i) store(from[i], rows[i]);
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 16; ++i) to[j][i] = from[i][j];
  }
  for (int j = 0; j < 16; ++j) rows[j] = load(to[j]);
}

#endif

}  // namespace

}  // namespace eagle31rt::E31_ISA
