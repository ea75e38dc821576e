// IEEE details that C++ leaves open: which NaN comes out, and single rounding to 16 bits.
#pragma once
#include <cmath>

#include "words.h"

namespace gfx942 {

// What an invalid operation (inf - inf, 0 * inf) gives. x86 would give the same with the sign set.
inline f32 default_nan32() { return std::bit_cast<f32>(0x7fc00000u); }
inline f64 default_nan64() { return std::bit_cast<f64>(u64{0x7ff80000} << 32); }

inline bool is_nan(f32 x) { return x != x; }
inline bool is_nan(f64 x) { return x != x; }

inline f32 quiet(f32 x) { return std::bit_cast<f32>(std::bit_cast<u32>(x) | 0x00400000); }
inline f64 quiet(f64 x) { return std::bit_cast<f64>(std::bit_cast<u64>(x) | u64{1} << 51); }
inline f16 quiet(f16 x) {
  return std::bit_cast<f16>(static_cast<u16>(std::bit_cast<u16>(x) | 0x200));
}

inline bool is_signalling(f32 x) { return is_nan(x) && (std::bit_cast<u32>(x) & 0x00400000) == 0; }

// `result`, or the first NaN among the operands, quiet, or the default NaN.
inline f32 settled(f32 result, f32 a, f32 b) {
  const f32 nan = is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : default_nan32();
  return is_nan(result) ? nan : result;
}
inline f32 settled(f32 result, f32 a, f32 b, f32 c) {
  const f32 nan = is_nan(a)   ? quiet(a)
                  : is_nan(b) ? quiet(b)
                  : is_nan(c) ? quiet(c)
                              : default_nan32();
  return is_nan(result) ? nan : result;
}
inline f64 settled(f64 result, f64 a, f64 b) {
  const f64 nan = is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : default_nan64();
  return is_nan(result) ? nan : result;
}
inline f64 settled(f64 result, f64 a, f64 b, f64 c) {
  const f64 nan = is_nan(a)   ? quiet(a)
                  : is_nan(b) ? quiet(b)
                  : is_nan(c) ? quiet(c)
                              : default_nan64();
  return is_nan(result) ? nan : result;
}

inline f32 sum(f32 a, f32 b) { return settled(a + b, a, b); }
inline f32 product(f32 a, f32 b) { return settled(a * b, a, b); }
inline f32 fused(f32 a, f32 b, f32 c) { return settled(__builtin_fmaf(a, b, c), a, b, c); }

// IEEE mode: a signalling NaN comes out quiet; else a number wins over a NaN; +0 is above -0.
inline f32 smaller(f32 a, f32 b) {
  if (is_signalling(a)) return quiet(a);
  if (is_signalling(b)) return quiet(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
inline f32 larger(f32 a, f32 b) {
  if (is_signalling(a)) return quiet(a);
  if (is_signalling(b)) return quiet(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// f16 arithmetic through f32: 24 bits are more than twice 11 + 1, so rounding twice is rounding
// once.
inline f16 to_half(f32 x, f16 a, f16 b) {
  if (!is_nan(x)) return static_cast<f16>(x);
  if (a != a) return quiet(a);
  return b != b ? quiet(b) : std::bit_cast<f16>(u16{0x7e00});
}
inline f16 sum(f16 a, f16 b) { return to_half(static_cast<f32>(a) + static_cast<f32>(b), a, b); }
inline f16 product(f16 a, f16 b) {
  return to_half(static_cast<f32>(a) * static_cast<f32>(b), a, b);
}
inline f16 smaller(f16 a, f16 b) {
  return static_cast<f16>(smaller(static_cast<f32>(a), static_cast<f32>(b)));
}
inline f16 larger(f16 a, f16 b) {
  return static_cast<f16>(larger(static_cast<f32>(a), static_cast<f32>(b)));
}

// a * b + c, rounded once: the f64 sum is made odd when it is inexact, so rounding it again is
// exact.
inline f64 odd_sum(f64 x, f64 y) {
  const f64 total = x + y;
  if (!(std::fabs(total) <= 1.7e308)) return total;
  const f64 part = total - x;
  const f64 error = (x - (total - part)) + (y - part);
  u64 bits = std::bit_cast<u64>(total);
  if (error != 0 && (bits & 1) == 0) bits += (error > 0) == (total > 0) ? 1 : -1;
  return std::bit_cast<f64>(bits);
}
inline f16 fused(f16 a, f16 b, f16 c) {
  const f64 result = odd_sum(static_cast<f64>(a) * static_cast<f64>(b), static_cast<f64>(c));
  if (!is_nan(result)) return static_cast<f16>(result);
  if (a != a) return quiet(a);
  if (b != b) return quiet(b);
  return c != c ? quiet(c) : std::bit_cast<f16>(u16{0x7e00});
}

}  // namespace gfx942
