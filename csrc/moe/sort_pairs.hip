// Sort the (token, slot) pairs by expert, cut them into work units, and go once over the
// activations.
//
//   e(p) = local expert of topk_ids[p]: the id itself, or expert_map[id], if 0 <= e < num_experts;
//          a pair without one (padding, an expert of another rank) gets no row
//   rows: all pairs that have an expert, those of one expert together, experts ascending
//   tokens[row(p)] = p / top_k;   pair_rows[p] = row(p), or -1
//   work: each expert's rows, cut every 2^log2_tile rows (work_units.h)
//   scaled[i] = bf16(activations[i] * factor): exact for a power of two, within bf16's range
// and where there is a shared expert, which takes all tokens:
//   tokens[num_pairs + t] = t;   shared_work: these rows, cut likewise
//   shared_weights[t] = sigmoid( sum_k activations[t, k] * shared_gate[k] ), in float32
//
// Arguments: see the kernel.
// Reference   sglang_mi300a/moe/kernels/work_split.py, sort_pairs
// Test        tests/moe/kernels/test_sort_pairs.py
// Called by   the steps of sglang_mi300a/moe/kernels/steps.py
//
// Work split  workgroup 0 sorts; each further one takes two tokens' activations, if there is
//             something to do with them. Shapes come from the host: nothing is read back, so a
//             graph can hold the launch.
// LDS         two words an expert and one a wave: 8.1 KiB.
// Order       which row of its expert a pair gets depends on the order of atomic additions of
//             integers. Rows do not influence each other, so results after sum_slots do not.
// Evidence    E1.
#include "work_units.h"

namespace moe {

constexpr u32 kSortThreads = 1024;
constexpr u32 kSortWaves = kSortThreads / kLanes;
constexpr u32 kMaxExperts = kSortThreads;  // one thread each in the scan
constexpr u32 kHidden = 4096;
constexpr u32 kByThread = kLaneBytes / kBf16Bytes;  // activations
constexpr u32 kThreadsOfToken = kHidden / kByThread;

DEVICE u32 as_word(u32 value) { return value; }
DEVICE u32 as_word(float value) { return bits_of(value); }
DEVICE void from_word(u32 word, u32& value) { value = word; }
DEVICE void from_word(u32 word, float& value) { value = float_of(word); }

// `value` of the lane that the DPP control names, 0 where there is none or the row is not meant.
template <u32 kControl, u32 kRows, class T>
DEVICE T from_lane(T value) {
  T result;
  from_word(__builtin_amdgcn_update_dpp(0, as_word(value), kControl, kRows, 0xf, false), result);
  return result;
}

// The sum over this and all lower lanes; in the last lane over all.
template <class T>
DEVICE T sum_up_to_lane(T value) {
  value += from_lane<0x111, 0xf>(value);  // one lane up within a row of 16
  value += from_lane<0x112, 0xf>(value);
  value += from_lane<0x114, 0xf>(value);
  value += from_lane<0x118, 0xf>(value);
  value += from_lane<0x142, 0xa>(value);  // last lane of a row to all of the next: rows 1, 3
  value += from_lane<0x143, 0xc>(value);  // lane 31 to rows 2, 3
  return value;
}

DEVICE u32 atomic_add(u32& counter, u32 value) {
  return __hip_atomic_fetch_add(&counter, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// A negative id or an id too large is no expert: as unsigned numbers both are too large.
DEVICE u32 local_expert(const u32* topk_ids, u32 pair, const u32* expert_map, u32 num_ids) {
  const u32 id = topk_ids[pair];
  if (expert_map == nullptr) return id;
  return id < num_ids ? expert_map[id] : ~0u;
}

KERNEL(kSortThreads, 4)
moe_sort_pairs(const u32* topk_ids,    // int32 [num_tokens, top_k], contiguous
               u32 num_tokens,         // num_tokens * top_k below 2^17
               u32 top_k,              //
               const u32* expert_map,  // int32 [num_ids]: global id -> local expert or -1; or null
               u32 num_ids,            // entries of expert_map
               u32 num_experts,        // local ones, up to 1024
               u32 log2_tile,          // rows of a unit: 16 or 32
               u32x4* work,            // out: header, units, two empty units
               u32* tokens,            // out: int32 [num_pairs (+ num_tokens)], as far as rows go
               u32* pair_rows,         // out: int32 [num_pairs]
               const u8* activations,  // bf16 [num_tokens, 4096]
               u8* scaled,             // out: the same; or null
               float factor,           // a power of two
               u32x4* shared_work,     // out: as work; or null
               const u8* shared_gate,  // bf16 [4096]
               float* shared_weights) {  // out: float32 [num_tokens]
  SHARED u32 counts[kMaxExperts];
  SHARED u32 next_row[kMaxExperts];
  SHARED u32 of_waves[kSortWaves];
  const u32 thread = thread_index();
  const u32 wave = thread / kLanes;
  const u32 num_pairs = num_tokens * top_k;

  if (workgroup_index() != 0) {
    const u32 place = (workgroup_index() - 1) * kSortThreads + thread;
    const u32 token = place / kThreadsOfToken;
    const bool exists = token < num_tokens;
    const u32x4 none = {0, 0, 0, 0};
    const u32x4 words = exists ? reinterpret_cast<const u32x4*>(activations)[place] : none;
    f32x2 values[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 word = words[k];
      values[k] = f32x2{float_of(word << 16), float_of(word & 0xffff0000u)};
    }
    if (scaled != nullptr && exists) {
      u32x4 result;
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        const f32x2 product = values[k] * f32x2{factor, factor};
        result[k] = upper_halves(product.x, product.y);
      }
      reinterpret_cast<u32x4*>(scaled)[place] = result;
    }
    if (shared_work == nullptr) return;
    const u32x4 gate = reinterpret_cast<const u32x4*>(shared_gate)[thread % kThreadsOfToken];
    f32x2 sum = {0, 0};
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 word = gate[k];
      sum = fma(values[k], f32x2{float_of(word << 16), float_of(word & 0xffff0000u)}, sum);
    }
    const float in_wave = sum_up_to_lane(sum.x + sum.y);
    if (thread % kLanes == kLanes - 1) of_waves[wave] = bits_of(in_wave);
    meet_over_lds();
    if (thread % kThreadsOfToken != 0 || !exists) return;
    float all = 0;
#pragma unroll
    for (u32 k = 0; k < kThreadsOfToken / kLanes; ++k) all += float_of(of_waves[wave + k]);
    shared_weights[token] = sigmoid(all);
    return;
  }

  counts[thread] = 0;
  meet_over_lds();
  for (u32 pair = thread; pair < num_pairs; pair += kSortThreads) {
    const u32 expert = local_expert(topk_ids, pair, expert_map, num_ids);
    if (expert < num_experts) atomic_add(counts[expert], 1);
  }
  meet_over_lds();

  // Rows and units of all experts before this thread's, in one word: 17 bits of rows, 15 of units.
  const u32 tile = 1u << log2_tile;
  const u32 count = counts[thread];
  const u32 own = ((count + tile - 1) >> log2_tile) << 17 | count;
  const u32 in_wave = sum_up_to_lane(own);
  if (thread % kLanes == kLanes - 1) of_waves[wave] = in_wave;
  meet_over_lds();
  u32 before = in_wave - own;
  for (u32 other = 0; other < wave; ++other) before += of_waves[other];

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
      row = atomic_add(next_row[expert], 1);
      tokens[row] = pair / top_k;
    }
    pair_rows[pair] = row;
  }
  if (shared_work == nullptr) return;
  const u32 num_shared_units = (num_tokens + tile - 1) >> log2_tile;
  for (u32 token = thread; token < num_tokens; token += kSortThreads)
    tokens[num_pairs + token] = token;
  for (u32 index = thread; index < num_shared_units + 2; index += kSortThreads) {
    const u32 done = index << log2_tile;
    const u32 left = num_tokens - done;
    const bool exists = index < num_shared_units;
    const u32 rows = exists ? (left < tile ? left : tile) : 0;
    shared_work[1 + index] = u32x4{0, exists ? num_pairs + done : 0, rows, 0};
  }
  if (thread == 0) shared_work[0] = u32x4{num_shared_units, num_tokens, 0, 0};
}

}  // namespace moe
