// Rewrite a stream in place for the decode that makes no bf16 subnormals.
//
// Each code keeps its lane and word, so a lane rewrites its own 16 bytes: value k < 4 of a word's
// eight goes to byte k as s000eem0 less the bits that are always zero there, value k >= 4 to the
// bits between (ByBf8 in weight_formats.h reads it back). A negative zero becomes a positive one.
// Scale bytes grow by 15.
//
//   stream       uint8 [num_records, 1088]: stream_layout; scale bytes up to 239
//   num_records  their number
//   num_workers  waves of the grid
//
// Run once on each expert weight after loading, and only where the probe (dequantise.hip) found
// that the matrix unit drops subnormals. Needs no memory of its own.
//
// Reference   sglang_mi300a/moe/kernels/restripe.py
// Test        tests/moe/kernels/test_decode.py
// Called by   the self-test at start-up, through the launcher
//
// Work split  one wave a record at a time, striding over the records.
// LDS         none.
// Order       every byte is read and written by one lane.
// Evidence    E1.
#include "weight_formats.h"

namespace moe {

// The code of value `value` in the pair of words (a, b) as the checkpoint's layout left it, at bit
// 0: exponent and mantissa in bits 0 .. 2, sign in bit 3. Decodes the pair as BySubnormals does.
DEVICE u32 code_from(u32 decoded, u32 half) {
  const u32 bits = decoded >> (16 * half);
  return (bits >> 6 & 7) | (bits >> 12 & 8);
}

KERNEL(256, 4) moe_restripe_for_bf8(u8* stream, u32 num_records, u32 num_workers) {
  constexpr u32 kWaves = 4;
  constexpr u32 kBytes = Mxfp4<BySubnormals>::kBytes;
  const u32 lane = thread_index() % kLanes;
  const u32 wave = thread_index() / kLanes;
  for (u32 index = workgroup_index() * kWaves + wave; index < num_records; index += num_workers) {
    u8* const record = stream + u64{index} * kBytes;
    if (lane < kTileRows) reinterpret_cast<u32*>(record)[lane] += 0x0f0f0f0f;
    u32x4* const codes = reinterpret_cast<u32x4*>(record + Mxfp4<BySubnormals>::kScaleBytes) + lane;
    const u32x4 old = *codes;
    u32x4 changed;
#pragma unroll
    for (u32 pair = 0; pair < 2; ++pair) {
      u32x2 weights[2][2];
      BySubnormals::two_blocks(old[2 * pair], old[2 * pair + 1], weights);
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        u32 word = 0;
#pragma unroll
        for (u32 value = 0; value < 8; ++value) {
          const u32 code = code_from(weights[half][value / 4][value / 2 % 2], value % 2);
          const u32 magnitude = code & 7;
          const u32 sign = magnitude == 0 ? 0 : code >> 3;
          const u32 byte = value < 4 ? magnitude << 1 | sign << 7 : magnitude << 4 | sign;
          word |= byte << (8 * (value % 4));
        }
        changed[2 * pair + half] = word;
      }
    }
    *codes = changed;
  }
}

}  // namespace moe
