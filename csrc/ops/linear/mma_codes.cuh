// Quantised weights for the kernels of linear and expert_linear: codes travel from memory to registers as they are, and
// become 16-bit fragments there.
//
// Mapping. Strips of 16 outputs hold their codes in fragment order (packed_weight.h): a block copies the steps of its
// tile of K by cp.async, 16 bytes a thread, neighbours side by side, and a lane finds its 8 codes of a step of 16 k in
// one word (4 bits) or two (8 bits), lanes side by side: no bank conflicts, and no ldmatrix. Scales of its groups
// follow into the same stage; a lane reads those of its two columns. The rest, rows, segments and matrix instructions,
// is that of 16-bit weights, so the bits are those of the dequantised weight.
//
// Bytes of a weight: 0.5 + 2 / 32 (int4 in groups of 32, bfloat16 scales), 0.5 + 1 / 32 (MXFP4), 1 + 4 / 128 (FP8)
// where bfloat16 has 2: 28 %, 27 % and 52 % of the bytes, and of the time while that is the bytes'. Gate and up of
// Llama-3.1-8B (linear/cuda.cu), one row, in microseconds:
//   form     A100  H100  H200  B200
//   bf16      118    70    49    29
//   FP8        61    36    25    15
//   int4       33    20    14     8
//   MXFP4      31    19    13     8
// Instructions bound it too: to widen costs about 4.5 an element (shift, mask, add, multiply, half a conversion), and a
// multiprocessor issues 128 a clock: 28 elements a clock. 132 of them at 1.7 GHz read 6.3e12 elements a second: 19 us
// of this layer on an H100 or H200, so four-bit weights reach the bytes' time on an A100 and an H100 but not on an
// H200. A row tile widens for itself: 64 rows share what 16 share otherwise.
#pragma once

#include "ops/linear/mma_kernel.cuh"

namespace eagle31rt::cuda {

// A float whose bits are an exponent and 23 bits: 2^23 + code. Exact, and not the conversion unit, which is slow.
struct Int4Code {
  static constexpr int kBits = 4;
  E31_DEVICE static float value(uint32_t code) { return __uint_as_float(code | 0x4b000000u) - 8388616.0f; }
  E31_DEVICE static float scale(ScaleType type, const uint8_t* source) { return read_scale(type, source); }
};
// As code_value; a subnormal costs nothing here.
struct Fp4Code {
  static constexpr int kBits = 4;
  E31_DEVICE static float value(uint32_t code) {
    return __uint_as_float((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
  }
  E31_DEVICE static float scale(ScaleType, const uint8_t* source) { return read_scale(ScaleType::kE8M0, source); }
};
struct Fp8Code {
  static constexpr int kBits = 8;
  E31_DEVICE static float value(uint32_t code) {
    return __uint_as_float((code & 0x7fu) << 20 | (code & 0x80u) << 24) * 0x1p120f;
  }
  E31_DEVICE static float scale(ScaleType, const uint8_t* source) { return read_scale(ScaleType::kFloat32, source); }
};

template <typename Tile, typename Code>
struct alignas(128) CodeStage : ActivationStage<Tile> {
  static constexpr int kStrips = Tile::kColumns / static_cast<int>(kStripWidth);
  static constexpr int kStepBytes = 32 * Code::kBits;  // 16 k of a strip: 8 codes a lane
  static constexpr int kStripBytes = Tile::kDepth / 16 * kStepBytes;
  static constexpr int kScaleBytes = Tile::kDepth / 16 * static_cast<int>(kStripWidth) * 4;  // at most
  uint8_t codes[kStrips * kStripBytes];
  uint8_t scales[kStrips * kScaleBytes];
};

template <typename Element, typename Tile, typename Code>
struct CodeSource : TileSource<Element, Tile> {
  using StageType = CodeStage<Tile, Code>;
  static_assert(Tile::kThreads >= StageType::kStrips * (StageType::kScaleBytes / 16), "a chunk of scales a thread");

  const uint8_t* first_strip;
  int64_t strip_bytes;
  int64_t scales_offset;
  int group_size;
  int group_bytes;
  ScaleType scale_type;

  E31_DEVICE CodeSource(const MatrixProduct& product, int64_t first_row)
      : TileSource<Element, Tile>(product, first_row),
        strip_bytes(product.strips.strip_bytes),
        scales_offset(product.strips.scales_offset),
        group_size(product.strips.group_size),
        scale_type(product.strips.scale) {
    first_strip = static_cast<const uint8_t*>(product.weight) + blockIdx.y * (StageType::kStrips * strip_bytes);
    const int scale_bytes = scale_type == ScaleType::kFloat32 ? 4 : scale_type == ScaleType::kBFloat16 ? 2 : 1;
    group_bytes = static_cast<int>(kStripWidth) * scale_bytes;
  }

  // 16 bytes of a strip; zeros for one past the matrix.
  E31_DEVICE void copy_chunk(uint8_t* target, int strip, int64_t offset) const {
    const bool valid = strip * kStripWidth < this->num_columns;
    cp_async_16(target, first_strip + (valid ? strip : 0) * strip_bytes + offset, valid);
  }

  E31_DEVICE void copy(StageType& stage, const Cursor& cursor) const {
    constexpr int kChunks = StageType::kStripBytes / 16;
    static_assert(StageType::kStrips * kChunks % Tile::kThreads == 0, "whole rounds of copies");
    const int64_t codes = static_cast<int64_t>(cursor.k / 16) * StageType::kStepBytes;
#pragma unroll
    for (int first = 0; first < StageType::kStrips * kChunks; first += Tile::kThreads) {
      const int index = first + static_cast<int>(threadIdx.x);
      copy_chunk(stage.codes + 16 * index, index / kChunks, codes + index % kChunks * 16);
    }
    const int num_groups = group_size < Tile::kDepth ? Tile::kDepth / group_size : 1;
    const int num_chunks = num_groups * group_bytes / 16;  // of a strip's scales
    const int strip = static_cast<int>(threadIdx.x) / num_chunks;
    if (strip < StageType::kStrips) {
      const int offset = static_cast<int>(threadIdx.x) % num_chunks * 16;
      copy_chunk(stage.scales + strip * StageType::kScaleBytes + offset, strip,
                 scales_offset + static_cast<int64_t>(cursor.k / group_size) * group_bytes + offset);
    }
    this->copy_rows(stage, cursor);
  }

  E31_DEVICE void weights(const StageType& stage, const Position<Tile>& position, int column_offset, int step,
                          uint32_t (&fragments)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int strip = (position.column + column_offset) / static_cast<int>(kStripWidth);
    const int group = group_size < Tile::kDepth ? 16 * step / group_size : 0;
    const uint8_t* scales = stage.scales + strip * StageType::kScaleBytes + group * group_bytes;
    const int scale_bytes = group_bytes / static_cast<int>(kStripWidth);
    const uint8_t* codes =
        stage.codes + strip * StageType::kStripBytes + step * StageType::kStepBytes + lane * Code::kBits;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = Code::scale(scale_type, scales + (lane / 4 + 8 * half) * scale_bytes);
      uint32_t word = *reinterpret_cast<const uint32_t*>(codes + (Code::kBits == 8 ? 4 * half : 0));
      if constexpr (Code::kBits == 4) word >>= 16 * half;
      constexpr uint32_t kMask = (1u << Code::kBits) - 1u;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float low = Code::value(word >> (2 * i * Code::kBits) & kMask) * scale;
        const float high = Code::value(word >> ((2 * i + 1) * Code::kBits) & kMask) * scale;
        fragments[2 * half + i] = pack_pair<Element>(low, high);
      }
    }
  }
};

template <typename Element, typename Tile, typename Code>
struct CodeLaw : PlainLaw<Element, Tile> {
  using StageType = CodeStage<Tile, Code>;
  using SourceType = CodeSource<Element, Tile, Code>;
};
template <typename Element, typename Tile>
struct Int4Law : CodeLaw<Element, Tile, Int4Code> {};
template <typename Element, typename Tile>
struct Fp4Law : CodeLaw<Element, Tile, Fp4Code> {};
template <typename Element, typename Tile>
struct Fp8Law : CodeLaw<Element, Tile, Fp8Code> {};

// A law as a type, to choose one by the form of a weight.
template <template <typename, typename> typename LawTemplate>
struct LawOf {
  template <typename Element, typename Tile>
  using Law = LawTemplate<Element, Tile>;
};

// Calls body(LawOf<...>()) for the form of a weight.
template <typename Body>
void dispatch_form(const WeightForm& form, Body body) {
  switch (form.code) {
    case WeightCode::kNone:
      return body(LawOf<PlainLaw>());
    case WeightCode::kFp8:
      return body(LawOf<Fp8Law>());
    case WeightCode::kInt4:
      return body(LawOf<Int4Law>());
    case WeightCode::kFp4:
      return body(LawOf<Fp4Law>());
  }
}

inline QuantisedStrips describe_strips(const PackedWeightView& weight) {
  if (!weight.form.is_quantised()) return {};
  return {weight.strip_bytes(), weight.num_tiles() * weight.tile_bytes(), weight.form.group_size, weight.form.scale};
}

}  // namespace eagle31rt::cuda
