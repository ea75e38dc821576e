// Floating-point arithmetic of the vector unit. ISA guide, chapter 6.4 (denormals are kept and
// rounding is to nearest even: machine.py refuses kernels that ask for anything else) and chapter
// 12: VOP1, VOP2, VOP3.
#include "floats.h"
#include "registry.h"

namespace gfx942 {
namespace {

template <class T>
T middle(T a, T b, T c) {
  if (a != a || b != b || c != c) return smaller(smaller(a, b), c);
  const T top = larger(larger(a, b), c);
  if (top == a) return larger(b, c);
  return top == b ? larger(a, c) : larger(a, b);
}

void add_f32() {
  vector("v_add_f32", [](f32 a, f32 b) { return sum(a, b); });
  vector("v_sub_f32", [](f32 a, f32 b) { return settled(a - b, a, b); });
  vector("v_subrev_f32", [](f32 a, f32 b) { return settled(b - a, a, b); });
  vector("v_mul_f32", [](f32 a, f32 b) { return product(a, b); });
  // Zero times anything, infinity and NaN too, is zero.
  vector("v_mul_legacy_f32", [](f32 a, f32 b) { return a == 0 || b == 0 ? 0.0f : product(a, b); });
  vector("v_fma_f32", [](f32 a, f32 b, f32 c) { return fused(a, b, c); });
  vector("v_fmac_f32", [](f32 a, f32 b, Old<f32> c) { return fused(a, b, c.value); });
  vector("v_fmamk_f32", [](f32 a, f32 k, f32 c) { return fused(a, k, c); });
  vector("v_fmaak_f32", [](f32 a, f32 b, f32 k) { return fused(a, b, k); });
  vector("v_min_f32", [](f32 a, f32 b) { return smaller(a, b); });
  vector("v_max_f32", [](f32 a, f32 b) { return larger(a, b); });
  vector("v_min3_f32", [](f32 a, f32 b, f32 c) { return smaller(smaller(a, b), c); });
  vector("v_max3_f32", [](f32 a, f32 b, f32 c) { return larger(larger(a, b), c); });
  vector("v_med3_f32", [](f32 a, f32 b, f32 c) { return middle(a, b, c); });
  vector("v_trunc_f32", [](f32 a) { return is_nan(a) ? quiet(a) : std::trunc(a); });
  vector("v_ceil_f32", [](f32 a) { return is_nan(a) ? quiet(a) : std::ceil(a); });
  vector("v_floor_f32", [](f32 a) { return is_nan(a) ? quiet(a) : std::floor(a); });
  vector("v_rndne_f32", [](f32 a) { return is_nan(a) ? quiet(a) : std::nearbyint(a); });
  vector("v_fract_f32", [](f32 a) {  // below 1, even where the difference rounds to it
    const f32 part = settled(a - std::floor(a), a, a);
    return part >= 1 ? std::bit_cast<f32>(0x3f7fffffu) : part;
  });
  vector("v_ldexp_f32",
         [](f32 a, s32 exponent) { return is_nan(a) ? quiet(a) : std::ldexp(a, exponent); });
  vector("v_frexp_mant_f32", [](f32 a) {
    if (is_nan(a)) return quiet(a);
    int exponent;
    return std::isinf(a) ? a : std::frexp(a, &exponent);
  });
  vector("v_frexp_exp_i32_f32", [](f32 a) {
    if (!std::isfinite(a)) return 0;
    int exponent = 0;
    std::frexp(a, &exponent);
    return exponent;
  });
}

void add_f64() {
  vector("v_add_f64", [](f64 a, f64 b) { return settled(a + b, a, b); });
  vector("v_mul_f64", [](f64 a, f64 b) { return settled(a * b, a, b); });
  vector("v_fma_f64", [](f64 a, f64 b, f64 c) { return settled(std::fma(a, b, c), a, b, c); });
  vector("v_fmac_f64",
         [](f64 a, f64 b, Old<f64> c) { return settled(std::fma(a, b, c.value), a, b, c.value); });
  vector("v_trunc_f64", [](f64 a) { return is_nan(a) ? quiet(a) : std::trunc(a); });
  vector("v_ceil_f64", [](f64 a) { return is_nan(a) ? quiet(a) : std::ceil(a); });
  vector("v_floor_f64", [](f64 a) { return is_nan(a) ? quiet(a) : std::floor(a); });
  vector("v_rndne_f64", [](f64 a) { return is_nan(a) ? quiet(a) : std::nearbyint(a); });
  vector("v_ldexp_f64",
         [](f64 a, s32 exponent) { return is_nan(a) ? quiet(a) : std::ldexp(a, exponent); });
}

void add_f16() {
  vector("v_add_f16", [](f16 a, f16 b) { return sum(a, b); });
  vector("v_sub_f16", [](f16 a, f16 b) { return to_half(f32(a) - f32(b), a, b); });
  vector("v_subrev_f16", [](f16 a, f16 b) { return to_half(f32(b) - f32(a), a, b); });
  vector("v_mul_f16", [](f16 a, f16 b) { return product(a, b); });
  vector("v_min_f16", [](f16 a, f16 b) { return smaller(a, b); });
  vector("v_max_f16", [](f16 a, f16 b) { return larger(a, b); });
  vector("v_fma_f16", [](f16 a, f16 b, f16 c) { return KeepsHigh<f16>{fused(a, b, c)}; });
}

// v_fma_mix_f32 and the two that round it to f16, into either half.
f32 mixed(Mixed a, Mixed b, Mixed c) { return fused(a.value, b.value, c.value); }
f16 mixed_half(Mixed a, Mixed b, Mixed c) {
  const f64 exact = odd_sum(static_cast<f64>(a.value) * b.value, c.value);
  return is_nan(exact) ? static_cast<f16>(mixed(a, b, c)) : static_cast<f16>(exact);
}

void add_mixed() {
  vector("v_fma_mix_f32", [](Mixed a, Mixed b, Mixed c) { return mixed(a, b, c); });
  vector("v_fma_mixlo_f16",
         [](Mixed a, Mixed b, Mixed c) { return KeepsHigh<f16>{mixed_half(a, b, c)}; });
  vector("v_fma_mixhi_f16",
         [](Mixed a, Mixed b, Mixed c) { return KeepsHigh<f16>{mixed_half(a, b, c)}; });
}

// The three steps by which compilers divide exactly. ISA guide, chapter 12: VOP3, V_DIV_*. Where
// its words would not give the exact quotient, these do what does: test_programs.py divides over
// the whole range.
WithBit<f32> div_scale(f32 scaled, f32 denominator, f32 numerator) {
  const auto exponent = [](f32 x) { return static_cast<int>(std::bit_cast<u32>(x) >> 23 & 0xff); };
  const auto subnormal = [](f64 x) { return std::fabs(x) < 0x1p-126; };
  const bool of_denominator = scaled == denominator;
  const bool of_numerator = scaled == numerator;
  if (numerator == 0 || denominator == 0) return {default_nan32(), false};
  if (exponent(numerator) - exponent(denominator) >= 96) {
    return {of_denominator ? std::ldexp(scaled, 64) : scaled, true};
  }
  if (exponent(denominator) == 0) return {std::ldexp(scaled, 64), false};
  const bool tiny_reciprocal = subnormal(1.0 / static_cast<f64>(denominator));
  const bool tiny_quotient = subnormal(static_cast<f64>(numerator) / denominator);
  if (tiny_reciprocal && tiny_quotient) {
    return {of_denominator ? std::ldexp(scaled, -64) : scaled, true};
  }
  if (tiny_reciprocal) return {std::ldexp(scaled, -64), false};
  if (tiny_quotient) return {of_numerator ? std::ldexp(scaled, 64) : scaled, true};
  if (exponent(numerator) <= 23) return {std::ldexp(scaled, 64), false};
  return {scaled, false};
}

f32 div_fixup(f32 quotient, f32 denominator, f32 numerator) {
  const bool negative = std::signbit(denominator) != std::signbit(numerator);
  const f32 zero = negative ? -0.0f : 0.0f;
  const f32 infinity = negative ? -INFINITY : INFINITY;
  if (is_nan(numerator)) return quiet(numerator);
  if (is_nan(denominator)) return quiet(denominator);
  if (denominator == 0) return numerator == 0 ? default_nan32() : infinity;
  if (std::isinf(denominator)) return std::isinf(numerator) ? default_nan32() : zero;
  if (std::isinf(numerator)) return infinity;
  if (numerator == 0) return zero;
  if (is_nan(quotient)) return infinity;  // it overflowed on the way
  return negative ? -std::fabs(quotient) : std::fabs(quotient);
}

void add_division() {
  vector("v_div_scale_f32", [](f32 a, f32 b, f32 c) { return div_scale(a, b, c); });
  vector("v_div_fmas_f32", [](f32 a, f32 b, f32 c, Bit scale) {
    const f32 plain = fused(a, b, c);
    if (!scale || is_nan(plain)) return plain;
    // Scaled and rounded once: quotients below the normal range are exact, too.
    const f64 exact = odd_sum(static_cast<f64>(a) * b, c);
    return static_cast<f32>(std::ldexp(exact, std::fabs(c) >= 2 ? 64 : -64));
  });
  vector("v_div_fixup_f32", [](f32 a, f32 b, f32 c) { return div_fixup(a, b, c); });
}

}  // namespace

void add_vector_float() {
  add_f32();
  add_f64();
  add_f16();
  add_mixed();
  add_division();
}

}  // namespace gfx942
