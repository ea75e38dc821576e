// Dense products of few tokens with bf16 weights as the checkpoint has them, one or two matrices in
// one launch.
//
//   y[t, n] = bf16( sum_k W[n, k] * x[t, k] ), sums in float32; what is 2^112 or more becomes NaN
//
// Arguments: see SKINNY_ARGUMENTS below.
// Reference   torch: x.float() @ W.float().T
// Test        tests/gemm/kernels/test_skinny.py, test_static_budget.py, test_operator.py
// Called by   sglang_mi300a/gemm/skinny.py, which checks shapes, types and alignment
//
// Work split  a workgroup makes a tile of 16 or 32 rows of W by up to 128 tokens; its waves share K
//             evenly. Tiles of the same rows are neighbours (workgroup x), so that rows which one
//             has read are still in a cache for the next.
// Weights     the plain layout: the 64 lanes of a load read 64 contiguous bytes of each of 16 rows,
//             16 segments as a pre-shuffled stream would, so there is no second copy.
// LDS         the waves' sums, four tiles of 16 x 16 at a time (two where 16 waves share K): 32 KiB;
//             8 KiB where two waves do.
// Order       every sum has one order, the waves' parts are added in theirs: the same bits whatever
//             the scheduling.
// Evidence    E1 for the result and the instruction counts, E3 for the time.
#include "gfx942.h"

// The first matrix, on the workgroups y < num_items:
//   weights       bf16 [rows, K], rows a multiple of the tile's
//   out           bf16 [num_tokens, rows], written
//   out_row_bytes 2 * rows
// A second one with the same K and tokens, on the workgroups y >= num_items (else none are there):
//   weights_2, out_2, out_row_bytes_2
// Both:
//   x             bf16 [num_tokens, K], rows x_row_bytes apart (a multiple of 16)
//   x_row_bytes   at least row_bytes
//   num_tokens    of all units; workgroup x is the unit
//   row_bytes     2 * K; a multiple of 64 * waves * ring
//   num_items     tiles of rows of the first matrix
#define SKINNY_ARGUMENTS                                                                         \
  const gfx942::u8 *weights, gfx942::u8 *out, gfx942::u32 out_row_bytes,                         \
      const gfx942::u8 *weights_2, gfx942::u8 *out_2, gfx942::u32 out_row_bytes_2,               \
      const gfx942::u8 *x, gfx942::u32 x_row_bytes, gfx942::u32 num_tokens, gfx942::u32 row_bytes, \
      gfx942::u32 num_items

namespace gemm {
using namespace gfx942;

constexpr u32 kTileRows = 16;   // weight rows, and tokens, of one matrix instruction
constexpr u32 kLaneBytes = 16;  // eight values along K: operands of two matrix instructions
constexpr u32 kStepBytes = 64;  // of a row, that a load of all lanes takes: 32 values along K
constexpr u32 kBf16Bytes = 2;

DEVICE f32x4 mfma(u32x2 tokens, u32x2 weights, f32x4 sum) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
      __builtin_bit_cast(bf16x4, tokens), __builtin_bit_cast(bf16x4, weights), sum, 0, 0, 0);
}

// A variant: tokens of a unit, weight rows of an item, waves that share K, slots of the ring.
template <u32 kTokens, u32 kRows, u32 kWaves_, u32 kRing_>
struct Shape {
  static constexpr u32 kTokenTiles = kTokens / kTileRows;
  static constexpr u32 kSides = kRows / kTileRows;
  static constexpr u32 kWaves = kWaves_;
  static constexpr u32 kRing = kRing_;
  static constexpr u32 kTiles = kSides * kTokenTiles;
  // Tiles whose sums are exchanged at once, and the parts that one is cut into so that more waves
  // have something to add.
  static constexpr u32 kMost = kWaves > 8 ? 2 : 4;
  static constexpr u32 kGroup = kTiles < kMost ? kTiles : kMost;
  static constexpr u32 kSpread = kWaves / kGroup;
  static constexpr u32 kParts = kSpread >= 4 ? 4 : kSpread >= 2 ? 2 : 1;
  static constexpr u32 kEach = kWaves < kGroup ? kGroup / kWaves : 1;  // tiles that a wave adds
  static_assert(kTiles % kGroup == 0);
  using Partial = f32x4[kWaves][kGroup][kLanes];
};

template <class Shape>
DEVICE void skinny(const u8* weights, u8* out, u32 out_row_bytes, u32 item, const u8* x,
                   u32 x_row_bytes, u32 num_tokens, u32 row_bytes,
                   typename Shape::Partial& partial) {
  constexpr u32 kTokenTiles = Shape::kTokenTiles, kSides = Shape::kSides, kRing = Shape::kRing,
                kWaves = Shape::kWaves, kGroup = Shape::kGroup, kParts = Shape::kParts,
                kEach = Shape::kEach;

  const u32 lane = thread_index() % kLanes;
  const u32 wave = uniform(thread_index() / kLanes);
  const u32 column = lane % kTileRows;
  const u32 group = lane / kTileRows;
  const u32 first_token = workgroup_index() * (kTokenTiles * kTileRows);
  const u32 left = num_tokens - first_token;  // this unit's tokens and those of later ones

  // A range of its own for each tile: then the lanes' offsets are the same in all of them. A token
  // past the last lies past a range's end, and so is zero. What is not wanted is an empty range.
  const u32 tile_bytes = uniform(kTileRows * row_bytes);
  const auto weights_of = [&](u32 side, bool wanted) {
    const u64 first_row = u64{item * kSides + side} * kTileRows;
    return buffer_of(weights + first_row * row_bytes, wanted ? tile_bytes : 0);
  };
  u32 token_bytes[kTokenTiles];
#pragma unroll
  for (u32 tile = 0; tile < kTokenTiles; ++tile) {
    // The compiler has a vector instruction for such a difference, and then a vector of buffers.
    const u32 here = left > tile * kTileRows ? left - tile * kTileRows : 0;
    token_bytes[tile] = uniform(here * x_row_bytes);
  }
  const auto tokens_of = [&](u32 tile, bool wanted) {
    const u64 first = u64{first_token + tile * kTileRows};
    return buffer_of(x + first * x_row_bytes, wanted ? token_bytes[tile] : 0);
  };
  u32 weight_offset = column * row_bytes;
  u32 token_offset = column * x_row_bytes;
  pin(weight_offset);  // or product and sum become one 64-bit instruction with half its addend
  pin(token_offset);   // left to chance
  weight_offset += group * kLaneBytes;
  token_offset += group * kLaneBytes;

  u32x4 w[kRing][kSides], t[kRing][kTokenTiles];
  f32x4 sums[kSides][kTokenTiles] = {};
  const auto load = [&](u32 slot, u32 start, bool wanted) {
    const u32 from = start + slot * kStepBytes;
#pragma unroll
    for (u32 side = 0; side < kSides; ++side)
      w[slot][side] = load_u32x4(weights_of(side, wanted), weight_offset, from);
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile)
      t[slot][tile] = load_u32x4(tokens_of(tile, wanted), token_offset, from);
    keep_order();  // the order of loads is the order of waits: the same here as in the loop
  };

  const u32 slice_bytes = row_bytes / kWaves;
  u32 base = wave * slice_bytes;
  const u32 end = base + slice_bytes;
#pragma unroll
  for (u32 slot = 0; slot < kRing; ++slot) load(slot, base, true);

  while (true) {
    const u32 next = base + kRing * kStepBytes;
    const bool is_last = next == end;
#pragma unroll
    for (u32 slot = 0; slot < kRing; ++slot) {
#pragma unroll
      for (u32 side = 0; side < kSides; ++side)
#pragma unroll
        for (u32 tile = 0; tile < kTokenTiles; ++tile)
          sums[side][tile] = mfma(t[slot][tile].xy, w[slot][side].xy, sums[side][tile]);
#pragma unroll
      for (u32 side = 0; side < kSides; ++side)
#pragma unroll
        for (u32 tile = 0; tile < kTokenTiles; ++tile)
          sums[side][tile] = mfma(t[slot][tile].zw, w[slot][side].zw, sums[side][tile]);
      load(slot, next, !is_last);  // in the end the ring is filled with nothing: no traffic
    }
    if (is_last) break;
    base = next;
  }

  // The waves' sums, added in the waves' order. A lane has tokens 4 * group .. + 3 of its row.
  const Buffer rows = buffer_of(out + u64{first_token} * out_row_bytes, left * out_row_bytes);
#pragma unroll
  for (u32 first = 0; first < Shape::kTiles; first += kGroup) {
    if (first > 0) meet_over_lds();  // all have read the tiles before
#pragma unroll
    for (u32 k = 0; k < kGroup; ++k)
      partial[wave][k][lane] = sums[(first + k) / kTokenTiles][(first + k) % kTokenTiles];
    meet_over_lds();
    if (wave < kGroup * kParts) {
#pragma unroll
      for (u32 each = 0; each < kEach; ++each) {
        constexpr u32 kOwn = 4 / kParts;  // tokens of a lane
        const u32 k = wave / kParts * kEach + each;
        const u32 own = wave % kParts * kOwn;
        const u32 side = (first + k) / kTokenTiles;
        const u32 tile = (first + k) % kTokenTiles;
        const u32 n = (item * kSides + side) * kTileRows + column;
        const u32 token = tile * kTileRows + group * 4 + own;
#pragma unroll
        for (u32 j = 0; j < kOwn; ++j) {
          float sum = reinterpret_cast<const float*>(&partial[0][k][lane])[own + j];
#pragma unroll
          for (u32 part = 1; part < kWaves; ++part)
            sum += reinterpret_cast<const float*>(&partial[part][k][lane])[own + j];
          const float rounded = rounded_to_bf16(f32x2{sum, sum}).x;
          store_upper_half(rows, (token + j) * out_row_bytes + n * kBf16Bytes, 0,
                           bits_of(rounded));
        }
      }
    }
  }
}

#define SKINNY_KERNEL(name, waves_per_simd, shape)                                            \
  KERNEL(shape::kWaves* kLanes, waves_per_simd) name(SKINNY_ARGUMENTS) {                      \
    SHARED shape::Partial partial;                                                            \
    const u32 item = workgroup_index_y();                                                     \
    const bool is_second = item >= num_items;                                                 \
    skinny<shape>(is_second ? weights_2 : weights, is_second ? out_2 : out,                   \
                  is_second ? out_row_bytes_2 : out_row_bytes,                                \
                  is_second ? item - num_items : item, x, x_row_bytes, num_tokens, row_bytes, \
                  partial);                                                                   \
  }

// Tokens of a unit, rows of an item, waves that share K, waves on a SIMD, ring slots
#define SKINNY_VARIANTS(X) \
  X(16, 16, 16, 4, 8)      \
  X(64, 16, 16, 4, 4)      \
  X(16, 16, 8, 4, 8)       \
  X(32, 16, 8, 4, 4)       \
  X(48, 16, 8, 4, 4)       \
  X(64, 16, 8, 4, 4)       \
  X(64, 32, 8, 2, 4)       \
  X(96, 32, 8, 2, 4)       \
  X(128, 32, 8, 2, 4)      \
  X(16, 16, 2, 4, 4)       \
  X(64, 16, 2, 4, 4)       \
  X(128, 32, 2, 2, 4)

#define X(tokens, rows, waves, simd, ring)                      \
  using Shape##tokens##_##rows##_##waves = Shape<tokens, rows, waves, ring>; \
  SKINNY_KERNEL(gemm_skinny_##tokens##x##rows##_w##waves, simd, Shape##tokens##_##rows##_##waves)
SKINNY_VARIANTS(X)
#undef X

}  // namespace gemm
