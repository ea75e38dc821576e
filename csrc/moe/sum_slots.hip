// Add up what a token's experts gave, with the routing weights.
//
//   out[t, n] = bf16( sum_j weights[t, j] * rows[pair_rows[t, j], n] ),  j ascending, in float32;
//   a pair without a row (-1) adds nothing, whatever its weight;
//   last, where there is a shared expert, shared_weights[t] * rows[num_tokens * top_k + t, n]
//
// Arguments: see the kernel.
// Reference   sglang_mi300a/moe/reference.py, expert_layer
// Test        tests/moe/kernels/test_sum_slots.py
// Called by   the steps of sglang_mi300a/moe/kernels/steps.py
//
// Work split  grid (ceil(columns / 2048), num_tokens), four waves a workgroup; a lane has eight
//             neighbouring columns and loads them of ten slots at once.
// LDS         none.
// Order       slots are added in order: the result does not depend on scheduling.
// Evidence    E1 for the result, E3 for the time.
#include "work_units.h"

namespace moe {

constexpr u32 kSumThreads = 256;

KERNEL(kSumThreads, 4)
moe_sum_slots(const u8* rows,               // bf16 [rows, columns]
              u32 row_bytes,                // of all rows that may exist, below 2^32
              const u32* pair_rows,         // int32 [num_tokens, top_k]
              const float* weights,         // float32 [num_tokens, top_k]
              u32 num_tokens,               //
              u32 top_k,                    //
              const float* shared_weights,  // float32 [num_tokens]; null without a shared expert
              u8* out,                      // out: bf16 [num_tokens, columns]
              u32 columns) {                // a multiple of 8
  constexpr u32 kColumns = kLaneBytes / kBf16Bytes;
  constexpr u32 kAtOnce = 10;
  const u32 column = (workgroup_index() * kSumThreads + thread_index()) * kColumns;
  const u32 token = __builtin_amdgcn_workgroup_id_y();
  if (column >= columns) return;
  const Buffer all_rows = buffer_of(rows, row_bytes);
  const u32 lane_offset = column * kBf16Bytes;
  const auto load_row = [&](u32 row, bool exists) {
    return load_u32x4(all_rows, exists ? lane_offset : kPastAnyEnd,
                      exists ? row * columns * kBf16Bytes : 0);
  };

  f32x2 sums[kColumns / 2] = {};
  const auto add = [&](u32x4 words, float factor) {
#pragma unroll
    for (u32 word = 0; word < kColumns / 2; ++word) {
      const u32 two = words[word];
      const f32x2 values = {float_of(two << 16), float_of(two & 0xffff0000u)};
      sums[word] = fma(values, f32x2{factor, factor}, sums[word]);
    }
  };

  const bool has_shared = shared_weights != nullptr;
  const u32x4 shared_words = load_row(num_tokens * top_k + token, has_shared);
  for (u32 slot = 0; slot < top_k; slot += kAtOnce) {
    u32x4 words[kAtOnce];
    float factors[kAtOnce];
#pragma unroll
    for (u32 k = 0; k < kAtOnce; ++k) {
      const u32 pair = token * top_k + slot + k;
      const u32 row = slot + k < top_k ? load_uniform(pair_rows + pair) : ~0u;
      const bool exists = row != ~0u;
      factors[k] = exists ? load_uniform(weights + pair) : 0.0f;
      words[k] = load_row(row, exists);
    }
#pragma unroll
    for (u32 k = 0; k < kAtOnce; ++k) add(words[k], factors[k]);
  }
  add(shared_words, has_shared ? load_uniform(shared_weights + token) : 0.0f);
  u32x4 result;
#pragma unroll
  for (u32 word = 0; word < kColumns / 2; ++word) result[word] = pack_bf16(sums[word]);
  *reinterpret_cast<u32x4*>(out + (u64{token} * columns + column) * kBf16Bytes) = result;
}

}  // namespace moe
