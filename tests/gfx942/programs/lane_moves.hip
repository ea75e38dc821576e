// Values moved between lanes: DPP, swizzle, permute, readlane.
#include "gfx942.h"

#define DPP(old, value, control, rows, banks, zero) \
  (u32) __builtin_amdgcn_update_dpp((int)(old), (int)(value), control, rows, banks, zero)

// prefix[i] = sum of values of lanes 0..i of the wave, and all[i] = sum of the lane's row of 16.
KERNEL(256) void row_sums(const u32* values, u32* prefix, u32* row_total) {
  const u32 i = global_id();
  u32 sum = values[i];
  sum += DPP(0, sum, 0x111, 0xf, 0xf, false);  // row_shr:1
  sum += DPP(0, sum, 0x112, 0xf, 0xf, false);
  sum += DPP(0, sum, 0x114, 0xf, 0xf, false);
  sum += DPP(0, sum, 0x118, 0xf, 0xf, false);
  sum += DPP(0, sum, 0x142, 0xa, 0xf, false);  // row_bcast:15 into rows 1 and 3
  sum += DPP(0, sum, 0x143, 0xc, 0xf, false);  // row_bcast:31 into rows 2 and 3
  prefix[i] = sum;

  u32 total = values[i];
  total += DPP(total, total, 0x128, 0xf, 0xf, false);  // row_ror:8
  total += DPP(total, total, 0x124, 0xf, 0xf, false);
  total += DPP(total, total, 0x122, 0xf, 0xf, false);
  total += DPP(total, total, 0x121, 0xf, 0xf, false);
  row_total[i] = total;
}

// out[0..7][i]: the wave rearranged in eight ways.
KERNEL(64) void rearranged(const u32* values, u32* out) {
  const u32 t = thread_id();
  const u32 v = values[t];
  out[t] = DPP(0, v, 0x1b, 0xf, 0xf, true);         // quad_perm:[3,2,1,0]
  out[64 + t] = DPP(0, v, 0x140, 0xf, 0xf, true);   // row_mirror
  out[128 + t] = DPP(0, v, 0x141, 0xf, 0xf, true);  // row_half_mirror
  out[192 + t] = DPP(0, v, 0x153, 0xf, 0xf, true);  // row_newbcast:3
  out[256 + t] = DPP(7, v, 0x101, 0xf, 0x5, true);  // row_shl:1, banks 0 and 2
  out[320 + t] = (u32)__builtin_amdgcn_ds_bpermute((int)(((t * 5 + 3) % 64) * 4), (int)v);
  out[384 + t] = (u32)__builtin_amdgcn_ds_permute((int)(((t * 5 + 3) % 64) * 4), (int)v);
  out[448 + t] = (u32)__builtin_amdgcn_ds_swizzle((int)v, 0x041f);  // the neighbour by xor 1
}

// out[t] = first active lane's value, lane 17's value, and this lane's rank among odd values.
KERNEL(64) void uniform_reads(const u32* values, u32* out) {
  const u32 t = thread_id();
  const u32 v = values[t];
  const u64 odd = __builtin_amdgcn_ballot_w64(v % 2 == 1);
  const u32 below =
      __builtin_amdgcn_mbcnt_hi((u32)(odd >> 32), __builtin_amdgcn_mbcnt_lo((u32)odd, 0));
  if (v % 2 == 1) {
    out[3 * t] = (u32)__builtin_amdgcn_readfirstlane((int)v);
    out[3 * t + 1] = (u32)__builtin_amdgcn_readlane((int)v, 17);
    out[3 * t + 2] = below;
  }
}
