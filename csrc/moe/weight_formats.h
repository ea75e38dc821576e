// How a record of the weight stream becomes operands of the matrix unit.
//
// A record is what one load instruction of a wave brings: 16 weight rows by kK values along K, in
// the order of sglang_mi300a/stream_layout.py. Lane l owns row l % 16 and, in each block of 32
// values along K, values 8 * (l / 16) .. + 7: two operands of four. The activations lie likewise,
// with the token in place of the row, so a block of 32 takes two 16x16x16 instructions. Weights are
// the second operand (columns), so a lane's four sums belong to one weight row and one scale.
#pragma once
#include "gfx942.h"

namespace moe {
using namespace gfx942;

constexpr u32 kTileRows = 16;   // weight rows, and tokens, of one matrix instruction
constexpr u32 kBlockK = 32;     // values along K that share a scale
constexpr u32 kLaneBytes = 16;  // a lane's bytes of a record, and of a block of activations
constexpr u32 kBf16Bytes = 2;

DEVICE f32x4 mfma(u32x2 tokens, u32x2 weights, f32x4 sum) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
      __builtin_bit_cast(bf16x4, tokens), __builtin_bit_cast(bf16x4, weights), sum, 0, 0, 0);
}

// The 32 products along K of a block, summed: tokens 4 * (l / 16) .. + 3 of the lane's weight row.
DEVICE f32x4 dot_block(u32x4 tokens, u32x2 first, u32x2 second) {
  const f32x4 half = mfma(tokens.xy, first, f32x4{0, 0, 0, 0});
  return mfma(tokens.zw, second, half);
}

// Scale byte `kByte` of the word, moved to where a float has its exponent.
template <u32 kByte>
DEVICE float exponent_from_byte(u32 word, u32 twenty_three) {
  u32 bits;
  // One instruction; C++ spells it with two. Not volatile: the compiler may place it.
  asm("v_lshlrev_b32_sdwa %0, %1, %2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD "
      "src1_sel:BYTE_%3"
      : "=v"(bits)
      : "s"(twenty_three), "v"(word), "n"(kByte));
  return float_of(bits);
}

// What the two MXFP4 decodes share: a record is 64 bytes of scales (one word a row: its four
// blocks) and 1 KiB of codes (one word a block and lane).
struct Mxfp4Record {
  u32x4 codes;
  u32 scales;
};

template <class Decode>
struct Mxfp4 {
  using Record = Mxfp4Record;
  static constexpr u32 kBlocks = 4;
  static constexpr u32 kK = kBlocks * kBlockK;
  static constexpr u32 kScaleBytes = kTileRows * kBlocks;
  static constexpr u32 kBytes = kScaleBytes + kLanes * kLaneBytes;
  // Stored activations are multiplied by this power of two (see the decodes).
  static constexpr float kActivationFactor = Decode::kActivationFactor;

  // Where a lane finds its bytes in a record.
  struct Lane {
    u32 codes, scales;
  };
  DEVICE static Lane lane_offsets(u32 lane) {
    return {kScaleBytes + lane * kLaneBytes, lane % kTileRows * 4};
  }
  DEVICE static void load(Record& record, Buffer stream, Lane lane, u32 index, u32 base) {
    // An instruction's own offset reaches over three records; the rest goes to the scalar one.
    const u32 near = index % 4 * kBytes;
    const u32 far = base + (index - index % 4) * kBytes;
    record.scales = load_u32(stream, lane.scales + near, far);
    record.codes = load_u32x4(stream, lane.codes + near, far);
  }

  // Add a record's products to sums[token tile]: the first record of a sum starts it.
  template <u32 kTokenTiles, u32 kAllBlocks>
  DEVICE static void multiply(const Record& record, const u32x4 (&tokens)[kTokenTiles][kAllBlocks],
                              u32 first_block, bool starts, f32x4 (&sums)[kTokenTiles]) {
    u32 twenty_three = 23;
    asm("" : "+s"(twenty_three));
    const u32 exponents = Decode::exponents(record.scales);
    f32x2 factors[2] = {{exponent_from_byte<0>(exponents, twenty_three),
                         exponent_from_byte<1>(exponents, twenty_three)},
                        {exponent_from_byte<2>(exponents, twenty_three),
                         exponent_from_byte<3>(exponents, twenty_three)}};
    // A real pair: a splat of a lone register would read the register beside it too, and wait for
    // whatever load is under way into that one.
    pin(factors[0]);
    pin(factors[1]);
#pragma unroll
    for (u32 pair = 0; pair < 2; ++pair) {
      u32x2 weights[2][2];
      Decode::two_blocks(record.codes[2 * pair], record.codes[2 * pair + 1], weights);
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        const u32 block = 2 * pair + half;
        const f32x2 factor = half ? factors[pair].yy : factors[pair].xx;
#pragma unroll
        for (u32 tile = 0; tile < kTokenTiles; ++tile) {
          const f32x4 dot =
              dot_block(tokens[tile][first_block + block], weights[half][0], weights[half][1]);
          if (starts && block == 0) {
            sums[tile].xy = dot.xy * factor;
            sums[tile].zw = dot.zw * factor;
          } else {
            sums[tile].xy = fma(dot.xy, factor, sums[tile].xy);
            sums[tile].zw = fma(dot.zw, factor, sums[tile].zw);
          }
        }
      }
    }
  }
};

// Decode 1: the four bits of a code are moved, by rotations and one mask, to where bf16 has its
// sign (15), the two lowest exponent bits (8, 7) and the highest mantissa bit (6). That is the
// code's value times 2^-126, and 0.5 becomes a bf16 subnormal, which the matrix unit must keep
// (probe_matrix_unit.hip looks). Activations carry 2^64, scales the rest: a stored scale s stands
// for 2^(s - 127), and 2^-126 * 2^64 * 2^(s - 65) = 2^(s - 127), so a float's exponent field is
// s + 62. Exact for scale bytes 0 .. 192.
struct BySubnormals {
  static constexpr float kActivationFactor = 0x1p64f;
  static constexpr u32 kField = 0x81c081c0;
  static constexpr u32 kOwnLastField = 0x06030603;  // what the other three fields leave over

  DEVICE static u32 exponents(u32 scales) { return scales + 0x3e3e3e3eu; }

  // The eight values of each of two blocks. Three fields of a word are a rotation and the mask; the
  // fourths of both words are merged into one word first.
  DEVICE static void two_blocks(u32 a, u32 b, u32x2 (&weights)[2][2]) {
    const u32 last = (a & kOwnLastField) | ((b << 2) & ~kOwnLastField);
    weights[0][0] = u32x2{a & kField, (a << 4) & kField};
    weights[0][1] = u32x2{rotate_right(a, 6) & kField, (last << 6) & kField};
    weights[1][0] = u32x2{b & kField, (b << 4) & kField};
    weights[1][1] = u32x2{rotate_right(b, 6) & kField, rotate_right(last, 4) & kField};
  }
};

// Decode 2 makes no subnormals, for a matrix unit that drops them. Codes are moved to where an
// E5M2 byte has its sign (7), its lowest exponent bits (3, 2) and its highest mantissa bit (1), the
// hardware turns bytes into floats, and the upper halves of two floats are a pair of bf16: the
// code's value times 2^-15. It reads a stream that restripe_for_bf8.hip has rewritten: in that byte
// format 0x80 is NaN, so a negative zero must have become a positive one, the codes lie otherwise,
// and scale bytes already carry the 15.
struct ByBf8 {
  static constexpr float kActivationFactor = 1.0f;
  static constexpr u32 kFirstFour = 0x8e8e8e8e;  // the first four values, in place
  static constexpr u32 kMagnitude = 0x0e0e0e0e;
  static constexpr u32 kSign = 0x80808080;

  DEVICE static u32 exponents(u32 scales) { return scales; }

  DEVICE static u32x2 four_values(u32 bytes) {
    const f32x2 low = __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<int>(bytes), false);
    const f32x2 high = __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<int>(bytes), true);
    return {upper_halves(low.x, low.y), upper_halves(high.x, high.y)};
  }

  DEVICE static void two_blocks(u32 a, u32 b, u32x2 (&weights)[2][2]) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 word = half ? b : a;
      weights[half][0] = four_values(word & kFirstFour);
      weights[half][1] = four_values(((word >> 3) & kMagnitude) | ((word << 7) & kSign));
    }
  }
};

// For timing only, the results mean nothing: the stream's loads and waits without a decode or a
// product. How fast it runs says what memory gives to these loads.
struct LoadsOnly : Mxfp4<BySubnormals> {
  template <u32 kTokenTiles, u32 kAllBlocks>
  DEVICE static void multiply(const Record& record, const u32x4 (&)[kTokenTiles][kAllBlocks], u32,
                              bool starts, f32x4 (&sums)[kTokenTiles]) {
    asm volatile("" : : "v"(record.codes), "v"(record.scales));
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile)
      if (starts) sums[tile] = f32x4{0, 0, 0, 0};
  }
};

// For timing only: the fast decode, its bytes loaded from where a checkpoint has them on one rank
// of four. That is codes [512 experts][512 rows][2048 bytes], then scales [512][512][128]; so a load
// of 1 KiB touches 64 segments of 64 bytes in 16 rows, where the stream's touches 16 in a row.
struct FromCheckpoint : Mxfp4<BySubnormals> {
  static constexpr u32 kRowBytes = 2048;
  static constexpr u32 kSideBytes = 256 * kRowBytes;
  static constexpr u32 kExpertBytes = 2 * kSideBytes;
  static constexpr u32 kScalesAt = 512 * kExpertBytes;
  static constexpr u32 kCodeBytesOfScale = kBlockK / 2;

  DEVICE static Lane lane_offsets(u32 lane) {
    const u32 row = lane % kTileRows * kRowBytes;
    const u32 group = lane / kTileRows;
    return {row + group * kLanes, row / kCodeBytesOfScale + group * kBlocks};
  }
  DEVICE static void load(Record& record, Buffer stream, Lane lane, u32 index, u32 base) {
    const u32 side = base + index / kBlocks * kSideBytes;
    const u32 place = index % kBlocks;
    // One word of scales serves four loads of a row's codes; the later ones take a constant.
    if (place == 0) {
      record.scales = load_u32(stream, lane.scales, kScalesAt + side / kCodeBytesOfScale);
    } else {
      record.scales = 0x7f7f7f7fu;
      pin(record.scales);
    }
    record.codes = load_u32x4(stream, lane.codes + place * kLaneBytes, side);
  }
};

// Weights that are bf16 already: a record is 1 KiB, one block of 32 along K.
struct Bf16 {
  struct Record {
    u32x4 weights;
  };
  static constexpr u32 kBlocks = 1;
  static constexpr u32 kBytes = kLanes * kLaneBytes;
  static constexpr float kActivationFactor = 1.0f;

  struct Lane {
    u32 weights;
  };
  DEVICE static Lane lane_offsets(u32 lane) { return {lane * kLaneBytes}; }
  DEVICE static void load(Record& record, Buffer stream, Lane lane, u32 index, u32 base) {
    const u32 near = index % 4 * kBytes;
    record.weights = load_u32x4(stream, lane.weights + near, base + index * kBytes - near);
  }
  template <u32 kTokenTiles, u32 kAllBlocks>
  DEVICE static void multiply(const Record& record, const u32x4 (&tokens)[kTokenTiles][kAllBlocks],
                              u32 block, bool starts, f32x4 (&sums)[kTokenTiles]) {
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile) {
      const f32x4 before = starts ? f32x4{0, 0, 0, 0} : sums[tile];
      const f32x4 half = mfma(tokens[tile][block].xy, record.weights.xy, before);
      sums[tile] = mfma(tokens[tile][block].zw, record.weights.zw, half);
    }
  }
};

}  // namespace moe
