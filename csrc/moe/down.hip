// The second half of an expert: the projection back to the hidden size, for each sorted row.
//
//   result[r, n] = bf16( sum_k W2[e, n, k] * inner[r, k] / factor ),  e the expert of row r's unit
//
// Arguments: see DOWN_ARGUMENTS below. Routing weights and the sum over a token's experts are
// sum_slots.hip's.
// Reference   sglang_mi300a/moe/reference.py, expert_layer
// Test        tests/moe/kernels/test_down.py, test_expert_layer.py, test_static_budget.py
// Called by   the steps of sglang_mi300a/moe/kernels/steps.py
//
// Work split  K up to 512: each wave for itself takes a run of (unit, item) pairs; an item is 32
//             output rows (64 for K = 128). The unit's activations stay in registers for all its
//             items. K = 1024: two waves a workgroup, each with half of K.
// Weights     one stream a worker and expert, read in order.
// LDS         none up to K = 512. K = 1024: partial sums, double-buffered, one barrier an item,
//             8 KiB for 16 tokens and 16 KiB for 32; each wave finishes half of the results.
// Order       every sum has one order, whatever the grid and the scheduling.
// Evidence    E1 for the result and the instruction counts, E3 for the time.
#include "work_units.h"

// The routed experts:
//   stream        uint8 [experts][items][slices][2 sides][records]: stream_layout, w2
//   stream_bytes  of all experts, below 2^32
//   inner         bf16 [rows, K], as gate_up wrote it
//   work          units, see work_units.h
//   result        out: bf16 [rows, output rows]
//   log2_items    items of a unit: output rows / 32 (/ 64 for K = 128)
//   num_workers   their workers: waves, or for K = 1024 workgroups; whole workgroups
// A shared expert, bf16, with the same K, on the workgroups behind:
//   shared_stream, shared_stream_bytes, shared_work, num_shared_workers (0: there is none)
#define DOWN_ARGUMENTS                                                                           \
  const gfx942::u8 *stream, gfx942::u32 stream_bytes, const gfx942::u8 *inner,                   \
      const gfx942::u32x4 *work, gfx942::u8 *result, gfx942::u32 log2_items,                     \
      gfx942::u32 num_workers, const gfx942::u8 *shared_stream, gfx942::u32 shared_stream_bytes, \
      const gfx942::u32x4 *shared_work, gfx942::u32 num_shared_workers

namespace moe {

// What follows from K, the tokens of a unit, and the waves of a workgroup.
template <u32 kK, u32 kTokens, u32 kWaves_>
struct DownShape {
  static constexpr u32 kTokenTiles = kTokens / kTileRows;
  static constexpr u32 kSplit = kK > 512 ? kK / 512 : 1;    // waves that share K
  static constexpr u32 kRowBlocks = kK / kSplit / kBlockK;  // blocks of 32 in a wave's slice of K
  static constexpr u32 kPairs = kK < 256 ? 2 : 1;  // pairs of an even and an odd side in an item
  static constexpr u32 kWaves = kWaves_;
  static constexpr u32 kWorkers = kSplit == 1 ? kWaves : 1;
  // Sums that a workgroup's waves exchange: only where they share K.
  using Partial = f32x4[kSplit == 1 ? 1 : 2 * kSplit * 2 * kTokenTiles][kLanes];
};

template <class Format, class Shape, u32 kRing>
DEVICE void down(const u8* stream, u32 stream_bytes, const u8* inner, const u32x4* work, u8* result,
                 u32 log2_items, u32 worker, u32 num_workers, typename Shape::Partial& partial) {
  constexpr u32 kTokenTiles = Shape::kTokenTiles, kRowBlocks = Shape::kRowBlocks,
                kPairs = Shape::kPairs, kSplit = Shape::kSplit, kWaves = Shape::kWaves;
  static_assert(kSplit == 1 || (kSplit == 2 && kWaves == 2 && kPairs == 1));
  constexpr u32 kSliceBytes = kRowBlocks * kBlockK * kBf16Bytes;
  constexpr u32 kInnerBytes = kSplit * kSliceBytes;
  constexpr u32 kPairBytes = 2 * kTileRows * kBf16Bytes;  // of a result row
  using Item = moe::Item<Format, kRing, kTokenTiles, kRowBlocks, 2 * kPairs>;

  const u32 lane = thread_index() % kLanes;
  const u32 wave = uniform(thread_index() / kLanes);
  const u32 column = lane % kTileRows;
  const u32 group = lane / kTileRows;
  const u32 slice = kSplit == 1 ? 0 : wave;
  const typename Format::Lane lane_offsets = Format::lane_offsets(lane);

  const Share share = share_of(worker, num_workers, num_units(work) << log2_items);
  u32 position = share.begin;
  const u32 end = share.end;
  if (position == end) return;

  const u32 item_mask = (1u << log2_items) - 1;
  const auto base_of = [&](const Unit& unit, u32 item) {
    return (((unit.expert << log2_items) + item) * kSplit + slice) * Item::kBytes;
  };

  Item state;
  u32 inner_offset[kTokenTiles];
#pragma unroll
  for (u32 tile = 0; tile < kTokenTiles; ++tile)
    inner_offset[tile] =
        (tile * kTileRows + column) * kInnerBytes + slice * kSliceBytes + group * kLaneBytes;
  const auto load_activations = [&](const Unit& unit) {
    const Buffer rows =
        buffer_of(inner + u64{unit.first_row} * kInnerBytes, unit.num_rows * kInnerBytes);
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile)
#pragma unroll
      for (u32 block = 0; block < kRowBlocks; ++block)
        state.tokens[tile][block] =
            load_u32x4(rows, inner_offset[tile] + block * kBlockK * kBf16Bytes, 0);
    state.tokens_needed_here();
  };

  // What this wave stores of an item: all of it, or of a split item a token tile, or, if there is
  // but one, two of a lane's four tokens.
  constexpr u32 kOwnTiles = kSplit == 1 ? kTokenTiles : 1;
  constexpr u32 kOwnTokens = kTokenTiles < kSplit ? 4 / kSplit : 4;
  const u32 own_tile = kSplit > 1 && kTokenTiles > 1 ? slice : 0;
  const u32 own_token = kTokenTiles < kSplit ? slice * kOwnTokens : 0;
  const u32 row_bytes = (kPairs * kPairBytes) << log2_items;
  u32 result_offset[kOwnTiles][kOwnTokens];
#pragma unroll
  for (u32 tile = 0; tile < kOwnTiles; ++tile)
#pragma unroll
    for (u32 k = 0; k < kOwnTokens; ++k)
      result_offset[tile][k] =
          ((own_tile + tile) * kTileRows + group * 4 + own_token + k) * row_bytes + column * 4;

  Unit unit = unit_at(work, position >> log2_items);
  Unit next = unit_at(work, (position + 1) >> log2_items);
  u32 base = base_of(unit, position & item_mask);
  state.start(buffer_of(stream, stream_bytes), lane_offsets, base);
  load_activations(unit);

  for (u32 turn = 0;; turn ^= 1) {
    const u32 item = position & item_mask;
    const bool is_last = position + 1 == end;
    // After the last item the ring is filled with nothing: an empty buffer costs no traffic.
    const Buffer next_stream = buffer_of(stream, is_last ? 0 : stream_bytes);
    const u32 next_base = base_of(next, (position + 1) & item_mask);
    Unit after_next = unit_at(work, (position + 2) >> log2_items);

    state.multiply(buffer_of(stream, stream_bytes), base, next_stream, next_base, lane_offsets,
                   [] {});

    // Stores of rows that do not exist are dropped by the bounds of the buffer. They are never
    // skipped: the waits count them.
    const Buffer rows =
        buffer_of(result + u64{unit.first_row} * row_bytes, unit.num_rows * row_bytes);
    // Of one token tile: results k, k + 1 .. of the even and the odd side.
    const auto store_two = [&](u32 tile, u32 k, u32 pair, f32x2 even, f32x2 odd) {
      const f32x2 left = rounded_to_bf16(even);
      const f32x2 right = rounded_to_bf16(odd);
      const u32 place = (item * kPairs + pair) * kPairBytes;
      store_u32(rows, result_offset[tile][k], place, upper_halves(left.x, right.x));
      store_u32(rows, result_offset[tile][k + 1], place, upper_halves(left.y, right.y));
    };
    if constexpr (kSplit == 1) {
#pragma unroll
      for (u32 pair = 0; pair < kPairs; ++pair)
#pragma unroll
        for (u32 tile = 0; tile < kTokenTiles; ++tile) {
          const f32x4 even = state.sums[2 * pair][tile];
          const f32x4 odd = state.sums[2 * pair + 1][tile];
          store_two(tile, 0, pair, even.xy, odd.xy);
          store_two(tile, 2, pair, even.zw, odd.zw);
        }
    } else {
      const auto part_of = [&](u32 from, u32 side, u32 tile) -> f32x4& {
        return partial[((turn * kSplit + from) * 2 + side) * kTokenTiles + tile][lane];
      };
#pragma unroll
      for (u32 side = 0; side < 2; ++side)
#pragma unroll
        for (u32 tile = 0; tile < kTokenTiles; ++tile)
          part_of(wave, side, tile) = state.sums[side][tile];
      meet_over_lds();
#pragma unroll
      for (u32 k = 0; k < kOwnTokens; k += 2) {
        const auto both = [&](u32 side) {
          const auto part = [&](u32 from) {
            const float* all = reinterpret_cast<const float*>(&part_of(from, side, own_tile));
            return *reinterpret_cast<const f32x2*>(all + own_token + k);
          };
          return part(0) + part(1);
        };
        store_two(0, k, 0, both(0), both(1));
      }
    }
    keep_order();

    after_next.needed_here();
    if (is_last) return;
    ++position;
    if ((position & item_mask) == 0) load_activations(next);
    unit = next;
    next = after_next;
    base = next_base;
  }
}

#define DOWN_KERNEL(name, waves_per_simd, shape, format, ring, bf16_ring)                          \
  KERNEL(shape::kWaves* kLanes, waves_per_simd) name(DOWN_ARGUMENTS) {                             \
    SHARED shape::Partial partial;                                                                 \
    u32 worker = workgroup_index() * shape::kWorkers;                                              \
    if (shape::kWorkers > 1) worker += uniform(thread_index() / kLanes);                           \
    if (worker < num_workers) {                                                                    \
      down<format, shape, ring>(stream, stream_bytes, inner, work, result, log2_items, worker,     \
                                num_workers, partial);                                             \
    } else {                                                                                       \
      down<Bf16, shape, bf16_ring>(shared_stream, shared_stream_bytes, inner, shared_work, result, \
                                   log2_items, worker - num_workers, num_shared_workers, partial); \
    }                                                                                              \
  }

// K, tokens of a unit, waves of a workgroup, waves on a SIMD, ring slots for MXFP4 and for bf16
#define DOWN_VARIANTS(X)  \
  X(128, 16, 8, 4, 4, 8)  \
  X(128, 32, 4, 3, 4, 8)  \
  X(256, 16, 8, 4, 4, 8)  \
  X(256, 32, 4, 3, 4, 8)  \
  X(512, 16, 8, 4, 4, 4)  \
  X(512, 32, 4, 2, 8, 16) \
  X(1024, 16, 2, 4, 4, 4) \
  X(1024, 32, 2, 2, 8, 16)

#define X(k, tokens, waves, simd, ring, bf16_ring)                                               \
  using DownShape##k##_##tokens = DownShape<k, tokens, waves>;                                   \
  DOWN_KERNEL(moe_down_k##k##_##tokens##_subnormals, simd, DownShape##k##_##tokens,              \
              Mxfp4<BySubnormals>, ring, bf16_ring)                                              \
  DOWN_KERNEL(moe_down_k##k##_##tokens##_bf8, simd, DownShape##k##_##tokens, Mxfp4<ByBf8>, ring, \
              bf16_ring)                                                                         \
  DOWN_KERNEL(moe_down_k##k##_##tokens##_bf16, simd, DownShape##k##_##tokens, Bf16, bf16_ring,   \
              bf16_ring)
DOWN_VARIANTS(X)
#undef X

}  // namespace moe
