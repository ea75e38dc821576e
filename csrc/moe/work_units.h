// What the two matrix stages share: the list of work units, its flat split over the workers, and
// the loop that keeps a ring of weight loads under way.
#pragma once
#include "weight_formats.h"

namespace moe {

// Up to a token tile's worth of sorted rows that one expert takes. `work[0].x` is the number of
// units, unit u is `work[1 + u]`; sort_pairs.hip writes them and two more that stand for nothing,
// since a worker reads two units ahead.
struct Unit {
  u32 expert;     // local
  u32 first_row;  // of the sorted rows
  u32 num_rows;   // 1 .. the token tile
  u32 unused;

  // The words are complete here, not before and not after: the load stays where it was written and
  // is not waited for until then. Names the unused word too, which keeps its register from holding
  // something else while the load is under way.
  DEVICE void needed_here() {
    asm volatile("" : "+s"(expert), "+s"(first_row), "+s"(num_rows) : "s"(unused));
  }
};

DEVICE u32 num_units(const u32x4* work) { return load_uniform(reinterpret_cast<const u32*>(work)); }
DEVICE Unit unit_at(const u32x4* work, u32 index) {
  const u32x4 words = load_uniform(work + 1 + index);
  return {words.x, words.y, words.z, words.w};
}

// A worker's part of all (unit, item) pairs: the same number for each, give or take one. Items of a
// unit are neighbours, and a unit has 2^log2_items of them.
struct Share {
  u32 begin, end;
};
DEVICE Share share_of(u32 worker, u32 num_workers, u32 total) {
  return {worker * total / num_workers, (worker + 1) * total / num_workers};
}

DEVICE float sigmoid(float x) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return __builtin_amdgcn_rcpf(1.0f + __builtin_amdgcn_exp2f(x * -kLog2E));
}

// The records of an item, multiplied one after the other. Record r of this item is in ring slot
// r % kRing; its place is filled again at once, from this item or the next, so kRing - 1 records
// are under way whenever one is waited for.
template <class Format, u32 kRing, u32 kTokenTiles, u32 kRowBlocks, u32 kSides>
struct Item {
  static constexpr u32 kRecords = kRowBlocks / Format::kBlocks;  // of one side
  static constexpr u32 kAllRecords = kSides * kRecords;
  static constexpr u32 kBytes = kAllRecords * Format::kBytes;
  static_assert(kAllRecords % kRing == 0, "a record of an item always has the same slot");

  typename Format::Record ring[kRing];
  u32x4 tokens[kTokenTiles][kRowBlocks];  // activations of the unit, kept for all its items
  f32x4 sums[kSides][kTokenTiles];

  DEVICE void start(Buffer stream, typename Format::Lane lane, u32 base) {
#pragma unroll
    for (u32 slot = 0; slot < kRing; ++slot) {
      Format::load(ring[slot], stream, lane, slot, base);
      keep_order();  // the order of loads is the order of waits: the same here as in the loop
    }
  }

  // `after_first` issues what else the item loads.
  template <class AfterFirst>
  DEVICE void multiply(Buffer stream, u32 base, Buffer next_stream, u32 next_base,
                       typename Format::Lane lane, AfterFirst after_first) {
#pragma unroll
    for (u32 step = 0; step < kAllRecords; ++step) {
      f32x4(&side)[kTokenTiles] = sums[step / kRecords];
      Format::multiply(ring[step % kRing], tokens, step % kRecords * Format::kBlocks,
                       step % kRecords == 0, side);
      // Else the scaling of all records would sink to where the sums are used.
#pragma unroll
      for (u32 tile = 0; tile < kTokenTiles; ++tile) pin(side[tile]);
      if (step + kRing < kAllRecords) {
        Format::load(ring[step % kRing], stream, lane, step + kRing, base);
      } else {
        Format::load(ring[step % kRing], next_stream, lane, step + kRing - kAllRecords, next_base);
      }
      if (step == 0) after_first();
      keep_order();
    }
  }

  // Loads that only a new unit needs are waited for where they are issued: one that may or may not
  // be under way would be waited for, with all before it, at the next use of its register.
  DEVICE void tokens_needed_here() {
#pragma unroll
    for (u32 tile = 0; tile < kTokenTiles; ++tile)
#pragma unroll
      for (u32 block = 0; block < kRowBlocks; ++block) pin(tokens[tile][block]);
  }
};

}  // namespace moe
