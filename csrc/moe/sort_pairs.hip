// Sort the (token, slot) pairs by expert, cut them into work units, and scale the activations.
//
//   e(p) = local expert of topk_ids[p]: the id itself, or expert_map[id], if 0 <= e < num_experts;
//          a pair without one (padding, an expert of another rank) gets no row
//   rows: all pairs that have an expert, those of one expert together, experts ascending
//   tokens[row(p)] = p / top_k;   pair_rows[p] = row(p), or -1
//   units: each expert's rows cut every 2^log2_tile rows (work_units.h)
//   scaled[i] = bf16(activations[i] * factor), exact for a power of two within bf16's range
//
// Arguments: see the kernel.
// Reference   sglang_mi300a/moe/kernels/work_split.py, sort_pairs
// Test        tests/moe/kernels/test_sort_pairs.py
// Called by   the steps of sglang_mi300a/moe/kernels/steps.py
//
// Work split  workgroup 0 sorts; every further one scales 8192 activations (none if factor is 1).
//             Shapes come from the host: nothing is read back, so a graph can hold the launch.
// LDS         two words an expert and one a wave: 8.1 KiB.
// Order       which row of its expert a pair gets depends on the order of atomic additions of
//             integers. Rows do not influence each other, so results after sum_slots do not.
// Evidence    E1.
#include "work_units.h"

namespace moe {

constexpr u32 kSortThreads = 1024;
constexpr u32 kMaxExperts = kSortThreads;  // one thread each in the scan
constexpr u32 kScaledByThread = kLaneBytes / kBf16Bytes;

// The sum over this and all lower lanes.
DEVICE u32 sum_up_to_lane(u32 value) {
  value += __builtin_amdgcn_update_dpp(0, value, 0x111, 0xf, 0xf, true);  // row_shr:1
  value += __builtin_amdgcn_update_dpp(0, value, 0x112, 0xf, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0, value, 0x114, 0xf, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0, value, 0x118, 0xf, 0xf, true);  // within 16 lanes
  value += __builtin_amdgcn_update_dpp(0, value, 0x142, 0xa, 0xf, false);  // row_bcast:15
  value += __builtin_amdgcn_update_dpp(0, value, 0x143, 0xc, 0xf, false);  // row_bcast:31
  return value;
}

DEVICE u32 atomic_add(SHARED u32* counter, u32 value) {
  return __hip_atomic_fetch_add(counter, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// A negative id or an id too large is no expert: as unsigned numbers both are too large.
DEVICE u32 local_expert(const u32* topk_ids, u32 pair, const u32* expert_map, u32 num_ids) {
  const u32 id = topk_ids[pair];
  if (expert_map == nullptr) return id;
  return id < num_ids ? expert_map[id] : ~0u;
}

DEVICE void scale(const u8* activations, u8* scaled, u32 num_activations, float factor) {
  const u32 thread = (workgroup_index() - 1) * kSortThreads + thread_index();
  if (thread * kScaledByThread >= num_activations) return;
  const u32x4 words = reinterpret_cast<const u32x4*>(activations)[thread];
  u32x4 result;
#pragma unroll
  for (u32 k = 0; k < 4; ++k) {
    const u32 word = words[k];
    result[k] = upper_halves(float_of(word << 16) * factor, float_of(word & 0xffff0000u) * factor);
  }
  reinterpret_cast<u32x4*>(scaled)[thread] = result;
}

KERNEL(kSortThreads, 4)
moe_sort_pairs(const u32* topk_ids,    // int32 [num_tokens, top_k], contiguous
               u32 num_pairs,          // num_tokens * top_k, below 2^17
               u32 top_k,              //
               const u32* expert_map,  // int32 [num_ids]: global id -> local expert or -1; or null
               u32 num_ids,            // entries of expert_map
               u32 num_experts,        // local ones, up to 1024
               u32 log2_tile,          // rows of a unit: 16 or 32
               u32x4* work,            // out: header, units, two empty units
               u32* tokens,            // out: int32 [num_pairs], the first num_rows written
               u32* pair_rows,         // out: int32 [num_pairs]
               const u8* activations,  // bf16 [num_activations]
               u8* scaled,             // out: the same
               u32 num_activations,    // a multiple of 8
               float factor) {         // a power of two
  SHARED u32 counts[kMaxExperts];
  SHARED u32 next_row[kMaxExperts];
  SHARED u32 sums_of_waves[kSortThreads / kLanes];

  if (workgroup_index() != 0) {
    scale(activations, scaled, num_activations, factor);
    return;
  }
  const u32 thread = thread_index();
  const u32 wave = thread / kLanes;
  counts[thread] = 0;
  meet_over_lds();
  for (u32 pair = thread; pair < num_pairs; pair += kSortThreads) {
    const u32 expert = local_expert(topk_ids, pair, expert_map, num_ids);
    if (expert < num_experts) atomic_add(&counts[expert], 1);
  }
  meet_over_lds();

  // Rows and units of all experts before this thread's, in one word: 17 bits of rows, 15 of units.
  const u32 tile = 1u << log2_tile;
  const u32 count = counts[thread];
  const u32 own = ((count + tile - 1) >> log2_tile) << 17 | count;
  const u32 in_wave = sum_up_to_lane(own);
  if (thread % kLanes == kLanes - 1) sums_of_waves[wave] = in_wave;
  meet_over_lds();
  u32 before = in_wave - own;
  for (u32 other = 0; other < wave; ++other) before += sums_of_waves[other];

  const u32 first_row = before & 0x1ffff;
  u32 unit = before >> 17;
  next_row[thread] = first_row;
  for (u32 done = 0; done < count; done += tile) {
    const u32 left = count - done;
    work[1 + unit++] = u32x4{thread, first_row + done, left < tile ? left : tile, 0};
  }
  if (thread == kSortThreads - 1) {
    work[0] = u32x4{unit, first_row + count, 0, 0};
    work[1 + unit] = u32x4{0, 0, 0, 0};
    work[2 + unit] = u32x4{0, 0, 0, 0};
  }
  meet_over_lds();

  for (u32 pair = thread; pair < num_pairs; pair += kSortThreads) {
    const u32 expert = local_expert(topk_ids, pair, expert_map, num_ids);
    u32 row = ~0u;
    if (expert < num_experts) {
      row = atomic_add(&next_row[expert], 1);
      tokens[row] = pair / top_k;
    }
    pair_rows[pair] = row;
  }
}

}  // namespace moe
