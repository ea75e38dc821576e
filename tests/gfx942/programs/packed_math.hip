// Packed f32, 8-bit floats, and the approximate functions of activation code.
#include "gfx942.h"

// out = x * y + z, x * s, and x + y, for pairs; s is one number for both.
KERNEL(64) void pairs(const f32x2* x, const f32x2* y, const f32x2* z, f32x2* out, float s) {
  const u32 t = thread_id();
  out[t] = __builtin_elementwise_fma(x[t], y[t], z[t]);
  out[64 + t] = x[t] * f32x2{s, s};
  out[128 + t] = x[t] + y[t];
  out[192 + t] = __builtin_elementwise_fma(x[t].yx, f32x2{y[t].x, y[t].x}, -z[t]);
}

// silu[i] = gate * sigmoid(gate) * up, as fused expert layers have it.
KERNEL(64) void silu(const float* gate, const float* up, float* out) {
  const u32 t = thread_id();
  const float g = gate[t];
  const float e = __builtin_amdgcn_exp2f(g * -1.44269504f);
  out[t] = g * __builtin_amdgcn_rcpf(1.0f + e) * up[t];
}

// quotient[i] = a / b, exactly rounded.
KERNEL(256) void divide(const float* a, const float* b, float* quotient) {
  const u32 i = global_id();
  quotient[i] = a[i] / b[i];
}

// 4 bytes of e5m2fnuz (or e4m3fnuz) become 4 floats, and go back.
KERNEL(64) void bytes_to_floats(const u32* bytes, f32x2* bf8, f32x2* fp8, u32* back) {
  const u32 t = thread_id();
  const int b = (int)bytes[t];
  bf8[2 * t] = __builtin_amdgcn_cvt_pk_f32_bf8(b, false);
  bf8[2 * t + 1] = __builtin_amdgcn_cvt_pk_f32_bf8(b, true);
  fp8[2 * t] = __builtin_amdgcn_cvt_pk_f32_fp8(b, false);
  fp8[2 * t + 1] = __builtin_amdgcn_cvt_pk_f32_fp8(b, true);
  int again = __builtin_amdgcn_cvt_pk_bf8_f32(bf8[2 * t].x, bf8[2 * t].y, 0, false);
  again = __builtin_amdgcn_cvt_pk_bf8_f32(bf8[2 * t + 1].x, bf8[2 * t + 1].y, again, true);
  back[t] = (u32)again;
}
