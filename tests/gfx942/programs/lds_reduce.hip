// totals[g] = sum of the 1024 values of workgroup g, through LDS and barriers.
#include "gfx942.h"

constexpr u32 kThreads = 256;

DEVICE void reduce(const u32* values, u32* totals, bool with_barriers) {
  SHARED static u32 part[kThreads];
  const u32 t = thread_id();
  u32 sum = 0;
  for (u32 i = t; i < 1024; i += kThreads) sum += values[group_id() * 1024 + i];
  part[t] = sum;
  if (with_barriers) barrier();
  for (u32 half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];
    if (with_barriers) {
      barrier();
    } else {
      __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "wavefront", "local");
    }
  }
  if (t == 0) totals[group_id()] = part[0];
}

KERNEL(kThreads) void lds_reduce(const u32* values, u32* totals) { reduce(values, totals, true); }

// Wrong on purpose: waves read what others may not have written yet.
KERNEL(kThreads) void lds_reduce_without_barriers(const u32* values, u32* totals) {
  reduce(values, totals, false);
}

// Reads LDS that nothing has written.
KERNEL(kThreads) void lds_unwritten(u32* out) {
  SHARED static u32 part[2 * kThreads];
  const u32 t = thread_id();
  part[t] = t;
  barrier();
  out[t] = part[t + 128];
}
