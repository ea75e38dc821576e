// The first half of an expert: both projections and the gate.
//
//   inner[r, n] = bf16( silu(G) * U * factor ),  G = sum_k W1[e, n, k] * x[t, k],
//                                                U = sum_k W1[e, N + n, k] * x[t, k]
//   for each row r of each unit, e the unit's expert and t = tokens[r]; G, U and the gate in
//   float32
//
// Arguments: see GATE_UP_ARGUMENTS below.
// Reference   sglang_mi300a/moe/reference.py, expert_layer (its inner values, times factor)
// Test        tests/moe/kernels/test_gate_up.py, test_expert_layer.py, test_static_budget.py
// Called by   the steps of sglang_mi300a/moe/kernels/steps.py
//
// Work split  a workgroup of 8 waves takes a run of (unit, item) pairs; an item is 16 gate rows and
//             the 16 up rows of the same neurons. The waves share K = 4096, 512 each, and keep the
//             unit's activations of these 512 in registers for all its items. Workgroups do not
//             depend on each other; the grid may have any size.
// Weights     one stream a wave and expert, read in order: 8 records of 1088 bytes an item.
// LDS         partial sums, double-buffered, one barrier an item: 32 KiB for 16 tokens (two
//             workgroups a compute unit), 64 KiB for 32 tokens (one). A wave in turn adds the
//             eight parts, in their order.
// Order       every sum has one order, whatever the grid and the scheduling: the result is the
//             same to the bit.
// Evidence    E1 for the result and the instruction counts, E3 for the time.
#include "work_units.h"

// The routed experts:
//   stream            uint8 [experts][8 slices][2^log2_items][2 sides][records]: stream_layout, w13
//   stream_bytes      of all experts, below 2^32
//   activations       bf16 [num_tokens, 4096], multiplied by the format's kActivationFactor
//   activation_bytes  their size
//   tokens            int32 [rows]: which token a row belongs to
//   token_bytes       their size
//   work              units, see work_units.h
//   inner             out: bf16 [rows, 16 << log2_items], times kActivationFactor
//   log2_items        items of a unit: neurons of the expert / 16
//   num_workers       workgroups of the routed experts
// A shared expert, bf16, with as many neurons, on the workgroups from num_workers on:
//   shared_stream, shared_stream_bytes, shared_activations (as they are), shared_work,
//   num_shared_workers (0: there is none)
#define GATE_UP_ARGUMENTS                                                                        \
  const gfx942::u8 *stream, gfx942::u32 stream_bytes, const gfx942::u8 *activations,             \
      gfx942::u32 activation_bytes, const gfx942::u32 *tokens, gfx942::u32 token_bytes,          \
      const gfx942::u32x4 *work, gfx942::u8 *inner, gfx942::u32 log2_items,                      \
      gfx942::u32 num_workers, const gfx942::u8 *shared_stream, gfx942::u32 shared_stream_bytes, \
      const gfx942::u8 *shared_activations, const gfx942::u32x4 *shared_work,                    \
      gfx942::u32 num_shared_workers

namespace moe {

constexpr u32 kWaves = 8;

template <u32 kTokenTiles>
using Partial = f32x4[2][kWaves][2][kTokenTiles][kLanes];

// Where a wave's bytes of an item begin.
template <class Format>
DEVICE u32 item_base(u32 expert, u32 wave, u32 item, u32 item_bytes, u32 log2_items) {
  return (expert * kWaves + wave) * (item_bytes << log2_items) + item * item_bytes;
}
template <>
DEVICE u32 item_base<FromCheckpoint>(u32 expert, u32 wave, u32 item, u32, u32) {
  return expert * FromCheckpoint::kExpertBytes +
         item * (kTileRows * FromCheckpoint::kRowBytes) +
         wave * (FromCheckpoint::kRowBytes / kWaves);
}

template <class Format, u32 kTokenTiles, u32 kRing>
DEVICE void gate_up(const u8* stream, u32 stream_bytes, const u8* activations, u32 activation_bytes,
                    const u32* tokens, u32 token_bytes, const u32x4* work, u8* inner,
                    u32 log2_items, u32 worker, u32 num_workers, Partial<kTokenTiles>& partial) {
  constexpr u32 kRowBlocks = 16;  // blocks of 32 in a wave's slice of K
  constexpr u32 kSliceBytes = kRowBlocks * kBlockK * kBf16Bytes;
  constexpr u32 kTokenBytes = kWaves * kSliceBytes;
  constexpr u32 kItemRowBytes = kTileRows * kBf16Bytes;
  using Item = moe::Item<Format, kRing, kTokenTiles, kRowBlocks, 2>;

  const u32 lane = thread_index() % kLanes;
  const u32 wave = uniform(thread_index() / kLanes);
  const u32 column = lane % kTileRows;
  const u32 group = lane / kTileRows;
  const typename Format::Lane lane_offsets = Format::lane_offsets(lane);

  const Share share = share_of(worker, num_workers, num_units(work) << log2_items);
  u32 position = share.begin;
  const u32 end = share.end;
  if (position == end) return;

  const u32 item_mask = (1u << log2_items) - 1;
  const auto base_of = [&](const Unit& unit, u32 item) {
    return item_base<Format>(unit.expert, wave, item, Item::kBytes, log2_items);
  };

  Item state;
  u32 row_tokens[kTokenTiles];
  const auto load_row_tokens = [&](const Unit& unit) {
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile)
      row_tokens[tile] = load_u32(buffer_of(tokens, token_bytes), (tile * kTileRows + column) * 4,
                                  unit.first_row * 4);
  };
  const auto load_activations = [&](const Unit& unit) {
    const Buffer rows = buffer_of(activations, activation_bytes);
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile) {
      pin(row_tokens[tile]);  // or the address is computed, and the token waited for, far above
      const bool exists = tile * kTileRows + column < unit.num_rows;
      const u32 row = exists ? row_tokens[tile] * kTokenBytes : kPastAnyEnd;  // past the end is 0
      const u32 offset = row + (wave * kSliceBytes + group * kLaneBytes);
#pragma unroll
      for (u32 block = 0; block < kRowBlocks; ++block)
        state.tokens[tile][block] = load_u32x4(rows, offset + block * kBlockK * kBf16Bytes, 0);
    }
    state.tokens_needed_here();
  };

  Unit unit = unit_at(work, position >> log2_items);
  Unit next = unit_at(work, (position + 1) >> log2_items);
  u32 base = base_of(unit, position & item_mask);
  load_row_tokens(unit);
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
                   [&] { load_row_tokens(next); });

#pragma unroll
    for (u32 side = 0; side < 2; ++side)
#pragma unroll
      for (u32 tile = 0; tile < kTokenTiles; ++tile)
        partial[turn][wave][side][tile][lane] = state.sums[side][tile];
    meet_over_lds();

    if (wave == position % kWaves) {
      const u32 row_bytes = kItemRowBytes << log2_items;
      const Buffer rows =
          buffer_of(inner + u64{unit.first_row} * row_bytes, unit.num_rows * row_bytes);
      u32 first_row = group * 4;
      pin(first_row);  // one wave in eight needs the addresses below: not in registers all the time
#pragma unroll
      for (u32 tile = 0; tile < kTokenTiles; ++tile) {
        f32x4 gate = partial[turn][0][0][tile][lane];
        f32x4 up = partial[turn][0][1][tile][lane];
#pragma unroll
        for (u32 part = 1; part < kWaves; ++part) {
          gate += partial[turn][part][0][tile][lane];
          up += partial[turn][part][1][tile][lane];
        }
        const u32 offset = (tile * kTileRows + first_row) * row_bytes + column * kBf16Bytes;
#pragma unroll
        for (u32 two = 0; two < 4; two += 2) {
          const f32x2 g = {gate[two], gate[two + 1]};
          const f32x2 u = {up[two], up[two + 1]};
          const f32x2 gated = g * f32x2{sigmoid(g.x), sigmoid(g.y)};
          const f32x2 values = rounded_to_bf16(gated * (u * Format::kActivationFactor));
#pragma unroll
          for (u32 k = 0; k < 2; ++k) {
            const float value = values[k];
            store_upper_half(rows, offset + (two + k) * row_bytes, item * kItemRowBytes,
                             bits_of(value));
          }
        }
      }
    }

    after_next.needed_here();
    if (is_last) return;
    ++position;
    if ((position & item_mask) == 0) load_activations(next);
    unit = next;
    next = after_next;
    base = next_base;
  }
}

#define GATE_UP_KERNEL(name, waves_per_simd, token_tiles, format, ring, bf16_ring)              \
  KERNEL(kWaves* kLanes, waves_per_simd) name(GATE_UP_ARGUMENTS) {                              \
    SHARED Partial<token_tiles> partial;                                                        \
    const u32 worker = workgroup_index();                                                       \
    if (worker < num_workers) {                                                                 \
      gate_up<format, token_tiles, ring>(stream, stream_bytes, activations, activation_bytes,   \
                                         tokens, token_bytes, work, inner, log2_items, worker,  \
                                         num_workers, partial);                                 \
    } else {                                                                                    \
      gate_up<Bf16, token_tiles, bf16_ring>(shared_stream, shared_stream_bytes,                 \
                                            shared_activations, activation_bytes, tokens,       \
                                            token_bytes, shared_work, inner, log2_items,        \
                                            worker - num_workers, num_shared_workers, partial); \
    }                                                                                           \
  }

// Tokens of a unit, waves on a SIMD, ring slots for MXFP4 and for bf16
#define GATE_UP_VARIANTS(X) \
  X(16, 4, 4, 4)            \
  X(32, 2, 8, 8)

#define X(tokens, simd, ring, bf16_ring)                                                           \
  GATE_UP_KERNEL(moe_gate_up_##tokens##_subnormals, simd, tokens / kTileRows, Mxfp4<BySubnormals>, \
                 ring, bf16_ring)                                                                  \
  GATE_UP_KERNEL(moe_gate_up_##tokens##_bf8, simd, tokens / kTileRows, Mxfp4<ByBf8>, ring,         \
                 bf16_ring)                                                                        \
  GATE_UP_KERNEL(moe_gate_up_##tokens##_bf16, simd, tokens / kTileRows, Bf16, bf16_ring,           \
                 bf16_ring)                                                                        \
  GATE_UP_KERNEL(moe_gate_up_##tokens##_loads_only, simd, tokens / kTileRows, LoadsOnly, ring,     \
                 bf16_ring)                                                                        \
  GATE_UP_KERNEL(moe_gate_up_##tokens##_checkpoint, simd, tokens / kTileRows, FromCheckpoint,      \
                 ring, bf16_ring)
GATE_UP_VARIANTS(X)
#undef X

}  // namespace moe
