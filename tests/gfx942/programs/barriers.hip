// Two waves that hand a value over through LDS, rightly and with two mistakes.
#include "gfx942.h"

// Wave 0 writes, wave 1 reads after a barrier that waits for the write.
KERNEL(128) void handed_over(u32* out) {
  SHARED static u32 box[64];
  const u32 t = thread_id();
  if (t < 64) box[t] = t + 1;
  barrier();
  if (t >= 64) out[t - 64] = box[t - 64];
}

// The barrier without a fence: nothing waits for the write, which may land after it.
KERNEL(128) void handed_over_too_early(u32* out) {
  SHARED static volatile u32 box[64];
  const u32 t = thread_id();
  if (t < 64) box[t] = t + 1;
  __builtin_amdgcn_s_barrier();
  if (t >= 64) out[t - 64] = box[t - 64];
}

// The reader's box is written again without a barrier after the reading.
KERNEL(128) void written_again(u32* out) {
  SHARED static volatile u32 box[64];
  const u32 t = thread_id();
  if (t < 64) box[t] = t + 1;
  barrier();
  if (t >= 64) out[t - 64] = box[t - 64];
  if (t < 64) box[t] = 0;
}
