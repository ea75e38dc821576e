// Conversions of the vector unit. ISA guide, chapter 12: VOP1 and VOP3, V_CVT_*.
#include <algorithm>
#include <limits>

#include "floats.h"
#include "registry.h"

namespace gfx942 {
namespace {

// Toward zero, saturating; NaN becomes 0.
template <class T, class F>
T to_integer(F x) {
  constexpr f64 low = static_cast<f64>(std::numeric_limits<T>::min());
  constexpr f64 high = static_cast<f64>(std::numeric_limits<T>::max());
  const f64 value = static_cast<f64>(x);
  if (value != value) return 0;
  if (value <= low) return std::numeric_limits<T>::min();
  return value >= high ? std::numeric_limits<T>::max() : static_cast<T>(value);
}

f32 narrowed(f64 x) {
  if (!is_nan(x)) return static_cast<f32>(x);
  const u64 bits = std::bit_cast<u64>(x);
  const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000;
  return std::bit_cast<f32>(sign | 0x7fc00000 | (static_cast<u32>(bits >> 29) & 0x3fffff));
}

// f32 to f16 toward zero, for v_cvt_pkrtz_f16_f32: too large becomes the largest finite number.
f16 half_toward_zero(f32 x) {
  if (is_nan(x) || std::isinf(x)) return static_cast<f16>(x);
  const f16 nearest = static_cast<f16>(x);
  if (std::fabs(static_cast<f32>(nearest)) <= std::fabs(x)) return nearest;
  return std::bit_cast<f16>(static_cast<u16>(std::bit_cast<u16>(nearest) - 1));
}

// The two 8-bit formats of gfx942. Both are FNUZ: one zero, no infinities, NaN is 0x80, and the
// exponent bias is one larger than in the OCP formats.
struct Tiny {
  int mantissa_bits;
  int bias;
};
constexpr Tiny kFp8{3, 8};   // e4m3fnuz, up to 240
constexpr Tiny kBf8{2, 16};  // e5m2fnuz, up to 57344

f32 widened(u32 byte, Tiny format) {
  byte &= 0xff;
  if (byte == 0x80) return default_nan32();
  const int exponent = static_cast<int>(byte & 0x7f) >> format.mantissa_bits;
  const int mantissa = static_cast<int>(byte) & ((1 << format.mantissa_bits) - 1);
  const int leading = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int power = std::max(exponent, 1) - format.bias - format.mantissa_bits;
  const f32 value = std::ldexp(static_cast<f32>(leading + mantissa), power);
  return byte & 0x80 ? -value : value;
}

// Round `x` to the format: to nearest even, or by adding `noise` (a fraction of 2^32 of the last
// place) and truncating. What is too large becomes NaN: machine.py refuses kernels that set
// FP16_OVFL, which would saturate instead.
u32 tiny(f32 x, Tiny format, const u32* noise) {
  constexpr u32 kNan = 0x80;
  if (!std::isfinite(x)) return kNan;
  if (x == 0) return 0;
  const f64 magnitude = std::fabs(static_cast<f64>(x));
  const int lowest = 1 - format.bias;  // exponent of the smallest normal number
  const int exponent = std::max(std::ilogb(magnitude), lowest);
  const f64 units = std::ldexp(magnitude, format.mantissa_bits - exponent);
  const f64 rounded =
      noise ? std::floor(units + std::ldexp(static_cast<f64>(*noise), -32)) : std::nearbyint(units);
  // A normal number's units include the leading bit, which counts as one step of the exponent.
  const u64 code =
      (static_cast<u64>(exponent - lowest) << format.mantissa_bits) + static_cast<u64>(rounded);
  if (code > 0x7f) return kNan;
  return code == 0 || !std::signbit(x) ? static_cast<u32>(code) : kNan | static_cast<u32>(code);
}

void add_integers() {
  vector("v_cvt_f32_i32", [](s32 a) { return static_cast<f32>(a); });
  vector("v_cvt_f32_u32", [](u32 a) { return static_cast<f32>(a); });
  vector("v_cvt_i32_f32", [](f32 a) { return to_integer<s32>(a); });
  vector("v_cvt_u32_f32", [](f32 a) { return to_integer<u32>(a); });
  vector("v_cvt_rpi_i32_f32",
         [](f32 a) { return to_integer<s32>(std::floor(static_cast<f64>(a) + 0.5)); });
  vector("v_cvt_flr_i32_f32", [](f32 a) { return to_integer<s32>(std::floor(a)); });
  vector("v_cvt_f32_ubyte0", [](u32 a) { return static_cast<f32>(a & 0xff); });
  vector("v_cvt_f32_ubyte1", [](u32 a) { return static_cast<f32>(a >> 8 & 0xff); });
  vector("v_cvt_f32_ubyte2", [](u32 a) { return static_cast<f32>(a >> 16 & 0xff); });
  vector("v_cvt_f32_ubyte3", [](u32 a) { return static_cast<f32>(a >> 24); });
  vector("v_cvt_f64_i32", [](s32 a) { return static_cast<f64>(a); });
  vector("v_cvt_f64_u32", [](u32 a) { return static_cast<f64>(a); });
  vector("v_cvt_i32_f64", [](f64 a) { return to_integer<s32>(a); });
  vector("v_cvt_u32_f64", [](f64 a) { return to_integer<u32>(a); });
  vector("v_cvt_f16_u16", [](u16 a) { return static_cast<f16>(a); });
  vector("v_cvt_f16_i16", [](s16 a) { return static_cast<f16>(a); });
  vector("v_cvt_u16_f16", [](f16 a) { return to_integer<u16>(a); });
  vector("v_cvt_i16_f16", [](f16 a) { return to_integer<s16>(a); });
  vector("v_cvt_pk_u16_u32", [](u32 a, u32 b) {
    return Pair<u16>{static_cast<u16>(std::min(a, 0xffffu)),
                     static_cast<u16>(std::min(b, 0xffffu))};
  });
  vector("v_cvt_pk_i16_i32", [](s32 a, s32 b) {
    return Pair<s16>{static_cast<s16>(std::clamp(a, -32768, 32767)),
                     static_cast<s16>(std::clamp(b, -32768, 32767))};
  });
  vector("v_cvt_pk_u8_f32", [](f32 a, u32 place, u32 into) {
    const u32 shift = 8 * (place & 3);
    const f32 rounded = is_nan(a) ? 0.0f : std::nearbyint(std::clamp(a, 0.0f, 255.0f));
    return (into & ~(0xffu << shift)) | static_cast<u32>(rounded) << shift;
  });
}

void add_floats() {
  vector("v_cvt_f32_f16", [](f16 a) { return static_cast<f32>(a); });
  vector("v_cvt_f16_f32", [](f32 a) { return static_cast<f16>(a); });
  vector("v_cvt_f64_f32", [](f32 a) { return static_cast<f64>(a); });
  vector("v_cvt_f32_f64", [](f64 a) { return narrowed(a); });
  vector("v_cvt_pkrtz_f16_f32",
         [](f32 a, f32 b) { return Pair<f16>{half_toward_zero(a), half_toward_zero(b)}; });
  vector("v_pack_b32_f16", [](u16 a, u16 b) { return Pair<u16>{a, b}; });
}

void add_8_bit_floats() {
  vector("v_cvt_f32_fp8", [](u32 a) { return widened(a, kFp8); });
  vector("v_cvt_f32_bf8", [](u32 a) { return widened(a, kBf8); });
  vector("v_cvt_pk_f32_fp8",
         [](u32 a) { return Pair<f32>{widened(a, kFp8), widened(a >> 8, kFp8)}; });
  vector("v_cvt_pk_f32_bf8",
         [](u32 a) { return Pair<f32>{widened(a, kBf8), widened(a >> 8, kBf8)}; });
  vector("v_cvt_pk_fp8_f32", [](f32 a, f32 b) {
    return KeepsHigh<u16>{static_cast<u16>(tiny(a, kFp8, nullptr) | tiny(b, kFp8, nullptr) << 8)};
  });
  vector("v_cvt_pk_bf8_f32", [](f32 a, f32 b) {
    return KeepsHigh<u16>{static_cast<u16>(tiny(a, kBf8, nullptr) | tiny(b, kBf8, nullptr) << 8)};
  });
  vector("v_cvt_sr_fp8_f32", [](f32 a, u32 noise) { return tiny(a, kFp8, &noise); });
  vector("v_cvt_sr_bf8_f32", [](f32 a, u32 noise) { return tiny(a, kBf8, &noise); });
}

}  // namespace

void add_vector_convert() {
  add_integers();
  add_floats();
  add_8_bit_floats();
}

}  // namespace gfx942
