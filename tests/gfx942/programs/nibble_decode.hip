// Two FP4 (E2M1) codes a byte become bf16, by byte tables in registers and v_perm_b32.
//
//   packed  u8 [count], low nibble first
//   values  bf16 [2 * count]
//   Each thread decodes 4 bytes.
#include "gfx942.h"

// The high bytes of 0, 0.5, 1, 1.5, 2, 3, 4, 6 as bf16, and their low bytes.
constexpr u32 kHigh0 = 0x3f3f3f00, kHigh1 = 0x40404040;
constexpr u32 kLow0 = 0xc0800000, kLow1 = 0xc0804000;

KERNEL(256) void nibble_decode(const u32* packed, u32* values, u32 num_words) {
  const u32 i = global_id();
  if (i >= num_words) return;
  const u32 word = packed[i];
  for (u32 half = 0; half < 2; ++half) {
    // Nibbles of byte k go to bytes 2 k and 2 k + 1 of `codes`.
    const u32 two_bytes = half ? word >> 16 : word & 0xffff;
    const u32 spread = (two_bytes | two_bytes << 8) & 0x00ff00ff;
    const u32 codes = (spread | spread << 4) & 0x0f0f0f0f;
    const u32 index = codes & 0x07070707;
    const u32 sign = (codes & 0x08080808) << 4;
    const u32 high = __builtin_amdgcn_perm(kHigh1, kHigh0, index) | sign;
    const u32 low = __builtin_amdgcn_perm(kLow1, kLow0, index);
    values[4 * i + 2 * half] = __builtin_amdgcn_perm(high, low, 0x05010400);
    values[4 * i + 2 * half + 1] = __builtin_amdgcn_perm(high, low, 0x07030602);
  }
}
