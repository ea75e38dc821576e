// One MFMA a kernel: D = A * B + C, each lane's registers contiguous in memory, one problem a
// workgroup.
#include "gfx942.h"

#define MFMA_KERNEL(name, builtin, input, result)                                    \
  KERNEL(64) void name(const input* a, const input* b, const result* c, result* d) { \
    const u32 i = group_id() * 64 + thread_id();                                     \
    d[i] = builtin(a[i], b[i], c[i], 0, 0, 0);                                       \
  }

MFMA_KERNEL(mfma_16x16x16_bf16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, s16x4, f32x4)
MFMA_KERNEL(mfma_32x32x8_bf16, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k, s16x4, f32x16)
MFMA_KERNEL(mfma_4x4x4_16b_bf16, __builtin_amdgcn_mfma_f32_4x4x4bf16_1k, s16x4, f32x4)
MFMA_KERNEL(mfma_16x16x4_4b_bf16, __builtin_amdgcn_mfma_f32_16x16x4bf16_1k, s16x4, f32x16)
MFMA_KERNEL(mfma_32x32x4_2b_bf16, __builtin_amdgcn_mfma_f32_32x32x4bf16_1k, s16x4, f32x32)
MFMA_KERNEL(mfma_16x16x16_f16, __builtin_amdgcn_mfma_f32_16x16x16f16, f16x4, f32x4)
MFMA_KERNEL(mfma_32x32x8_f16, __builtin_amdgcn_mfma_f32_32x32x8f16, f16x4, f32x16)
MFMA_KERNEL(mfma_4x4x4_16b_f16, __builtin_amdgcn_mfma_f32_4x4x4f16, f16x4, f32x4)
MFMA_KERNEL(mfma_16x16x4_4b_f16, __builtin_amdgcn_mfma_f32_16x16x4f16, f16x4, f32x16)
MFMA_KERNEL(mfma_32x32x4_2b_f16, __builtin_amdgcn_mfma_f32_32x32x4f16, f16x4, f32x32)
