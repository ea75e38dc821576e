// Loads and stores of bytes and halves, signed and not, into either half of a register.
#include "gfx942.h"

KERNEL(64)
void widen(const signed char* s8s, const u8* u8s, const short* s16s, const u16* u16s, int* out) {
  const u32 t = thread_id();
  out[4 * t] = s8s[t];
  out[4 * t + 1] = u8s[t];
  out[4 * t + 2] = s16s[t];
  out[4 * t + 3] = u16s[t];
}

// Pack two halves loaded apart, and store the upper halves apart.
KERNEL(64) void halves(const u16* low, const u16* high, u32* packed, u16* upper) {
  const u32 t = thread_id();
  const u32 word = low[t] | (u32)high[t] << 16;
  packed[t] = word;
  upper[t] = (u16)((word + 0x10000) >> 16);
}

// 64-bit arithmetic: out = a * b + (a >> s), and the order of a and b.
KERNEL(64)
void wide(const long long* a, const long long* b, const u32* s, long long* out, int* order) {
  const u32 t = thread_id();
  out[t] = a[t] * b[t] + (a[t] >> s[t]);
  order[t] = a[t] < b[t] ? -1 : a[t] > b[t];
}
