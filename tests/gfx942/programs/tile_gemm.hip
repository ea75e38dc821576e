// C[M, N] = A[M, K] * B[N, K]^T, bf16 in, f32 out: a wave a 16 x 16 tile, K in steps of 64 staged
// in LDS.
//
//   a   bf16 [m, k], k a multiple of 64
//   b   bf16 [n, k]
//   c   f32 [m, n], m and n multiples of 16
//   Grid: (n / 64, m / 16) workgroups of 256 threads; wave w computes columns 16 w ... of the 64.
#include "gfx942.h"

constexpr u32 kStep = 64;

KERNEL(256) void tile_gemm(const u16* a, const u16* b, float* c, u32 n, u32 k) {
  SHARED static u16 a_tile[16 * kStep];
  SHARED static u16 b_tile[64 * kStep];
  const u32 t = thread_id();
  const u32 lane = t % 64;
  const u32 wave = t / 64;
  const u32 first_row = __builtin_amdgcn_workgroup_id_y() * 16;
  const u32 first_column = group_id() * 64;
  f32x4 sum = {0, 0, 0, 0};
  for (u32 start = 0; start < k; start += kStep) {
    // Each thread brings 4 values of A and 16 of B.
    const u32 row = t / 16;
    const u32 at = t % 16 * 4;
    *(s16x4*)&a_tile[row * kStep + at] = *(const s16x4*)&a[(first_row + row) * k + start + at];
    for (u32 j = 0; j < 64; j += 16) {
      *(s16x4*)&b_tile[(row + j) * kStep + at] =
          *(const s16x4*)&b[(first_column + row + j) * k + start + at];
    }
    barrier();
    for (u32 s = 0; s < kStep; s += 16) {
      const u32 in_step = s + lane / 16 * 4;
      const s16x4 x = *(const s16x4*)&a_tile[lane % 16 * kStep + in_step];
      const s16x4 y = *(const s16x4*)&b_tile[(16 * wave + lane % 16) * kStep + in_step];
      sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, sum, 0, 0, 0);
    }
    barrier();
  }
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = first_row + lane / 16 * 4 + i;
    c[row * n + first_column + 16 * wave + lane % 16] = sum[i];
  }
}
