// Integer division, which compilers build from v_rcp and multiplications, and a 1,024-thread
// workgroup.
#include "gfx942.h"

// Quotients and remainders of 32-bit numbers, signed and not, and of 64-bit ones.
KERNEL(256)
void divide_integers(const u64* a, const u64* b, u32* narrow, int* with_sign, u64* wide) {
  const u32 t = thread_id();
  const u32 x = (u32)a[t], y = (u32)b[t];
  narrow[2 * t] = x / y;
  narrow[2 * t + 1] = x % y;
  with_sign[2 * t] = (int)x / (int)y;
  with_sign[2 * t + 1] = (int)x % (int)y;
  wide[2 * t] = a[t] / b[t];
  wide[2 * t + 1] = a[t] % b[t];
}

// Every thread's value reversed through 4 KiB of LDS; then a flag that says the results are
// visible.
KERNEL(1024) void reverse(const u32* values, u32* out, u32* flag) {
  SHARED static u32 box[1024];
  const u32 t = thread_id();
  box[t] = values[t];
  barrier();
  out[t] = box[1023 - t];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  if (t == 0) __hip_atomic_store(flag, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
