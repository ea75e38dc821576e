// Branches that lanes take differently: loops of different lengths, early exits, a switch.
#include "gfx942.h"

// steps[i] = Collatz steps from starts[i] to 1, at most `limit`.
KERNEL(256) void collatz(const u32* starts, u32* steps, u32 count, u32 limit) {
  const u32 i = global_id();
  if (i >= count) return;
  u64 n = starts[i];
  u32 taken = 0;
  while (n != 1) {
    if (taken == limit) break;
    n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    ++taken;
  }
  steps[i] = taken;
}

// A small instruction set: out[i] = program[i % 8] applied to i.
KERNEL(256) void dispatch(const u32* program, s16x4* out4, int* out, u32 count) {
  const u32 i = global_id();
  if (i >= count) return;
  int x = (int)i * 7 - 1000;
  switch (program[i % 8]) {
    case 0:
      x = -x;
      break;
    case 1:
      x /= 13;
      break;
    case 2:
      x %= 13;
      break;
    case 3:
      for (u32 k = 0; k < i % 5; ++k) {
        if (x < 0)
          x += 100;
        else
          x -= k;
      }
      break;
    case 4:
      x = __builtin_popcount(x) + (x >> 3);
      break;
    case 5:
      x = x * x;
      break;
    case 6:
      x = x > 0 ? (int)__builtin_clz(x) : -1;
      break;
    default:
      x ^= 0x5a5a;
      break;
  }
  out[i] = x;
  out4[i] = s16x4{(short)x, (short)(x >> 1), (short)(x + 1), (short)-x};
}
