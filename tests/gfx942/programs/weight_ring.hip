// The shape of a weight-streaming kernel: a ring of global loads kept full by counted waits, SDWA
// shifts, pins of inline assembly, partial sums through double-buffered LDS.
//
//   stream   u32 [rounds][waves][64][4], scales u32 [rounds][waves][64]
//   out      u32 [64]: per lane the sum over rounds and waves of rotated words times (scale byte 1
//   << 23)
#include "gfx942.h"

constexpr u32 kRing = 4;
constexpr u32 kWaves = 8;

DEVICE u32 shifted_byte(u32 scale) {
  u32 result;
  asm("v_lshlrev_b32_sdwa %0, %1, %2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD "
      "src1_sel:BYTE_1"
      : "=v"(result)
      : "v"(23), "v"(scale));
  return result;
}

KERNEL(512) void weight_ring(const u32x4* stream, const u32* scales, u32* out, u32 rounds) {
  SHARED static u32 partial[2][kWaves][64];
  const u32 lane = thread_id() % 64;
  const u32 wave = (u32)__builtin_amdgcn_readfirstlane((int)(thread_id() / 64));
  const u32x4* words = stream + wave * 64 + lane;
  const u32* scale = scales + wave * 64 + lane;
  u32x4 ring[kRing];
  u32 ring_scale[kRing];
#pragma unroll
  for (u32 k = 0; k < kRing; ++k) {
    ring[k] = words[k * kWaves * 64];
    ring_scale[k] = scale[k * kWaves * 64];
    __builtin_amdgcn_sched_barrier(0);  // else the first wait of the loop waits for everything
  }
  u32 total = 0;
  for (u32 round = 0; round < rounds; round += kRing) {
    u32 sum = 0;
#pragma unroll
    for (u32 k = 0; k < kRing; ++k) {
      const u32 factor = shifted_byte(ring_scale[k]);
      sum += __builtin_rotateleft32(ring[k].x, 7) * factor;
      sum += (ring[k].y & 0xf0f0f0f0 | ring[k].z & 0x0f0f0f0f) ^ ring[k].w;
      asm volatile("" : "+v"(sum));
      const u32 next = round + k + kRing < rounds ? round + k + kRing : 0;
      ring[k] = words[next * kWaves * 64];
      ring_scale[k] = scale[next * kWaves * 64];
      __builtin_amdgcn_sched_barrier(0);
    }
    const u32 buffer = round / kRing % 2;
    partial[buffer][wave][lane] = sum;
    barrier();
    if (wave == round / kRing % kWaves) {
      for (u32 w = 0; w < kWaves; ++w) total += partial[buffer][w][lane];
    }
  }
  if (total != 0)
    __hip_atomic_fetch_add(&out[lane], total, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
