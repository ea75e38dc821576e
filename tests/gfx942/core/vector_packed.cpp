// VOP3P: two values a lane. op_sel, op_sel_hi, neg_lo and neg_hi have been applied to the operands
// before these run. ISA guide, chapter 6.7 (packed math) and chapter 12, VOP3P.
#include <algorithm>

#include "floats.h"
#include "registry.h"

namespace gfx942 {
namespace {

// One function on both values of the operands.
#define GFX942_BOTH2(T, expression)                                       \
  [](Pair<T> x, Pair<T> y) {                                              \
    const auto one = [](T a, T b) { return static_cast<T>(expression); }; \
    return Pair<T>{one(x.lo, y.lo), one(x.hi, y.hi)};                     \
  }
#define GFX942_BOTH3(T, expression)                                            \
  [](Pair<T> x, Pair<T> y, Pair<T> z) {                                        \
    const auto one = [](T a, T b, T c) { return static_cast<T>(expression); }; \
    return Pair<T>{one(x.lo, y.lo, z.lo), one(x.hi, y.hi, z.hi)};              \
  }

void add_words() {
  vector("v_pk_fma_f32", GFX942_BOTH3(f32, fused(a, b, c)));
  vector("v_pk_mul_f32", GFX942_BOTH2(f32, product(a, b)));
  vector("v_pk_add_f32", GFX942_BOTH2(f32, sum(a, b)));
  // The low word comes from source 0, the high one from source 1; which of theirs, op_sel says
  // (decode.py turns it into the operands' select).
  vector("v_pk_mov_b32", [](Pair<u32> a, Pair<u32> b) { return Pair<u32>{a.lo, b.hi}; });
}

void add_integer_halves() {
  vector("v_pk_add_u16", GFX942_BOTH2(u16, a + b));
  vector("v_pk_add_i16", GFX942_BOTH2(u16, a + b));
  vector("v_pk_sub_u16", GFX942_BOTH2(u16, a - b));
  vector("v_pk_sub_i16", GFX942_BOTH2(u16, a - b));
  vector("v_pk_mul_lo_u16", GFX942_BOTH2(u16, u32{a} * b));
  vector("v_pk_mad_u16", GFX942_BOTH3(u16, u32{a} * b + c));
  vector("v_pk_mad_i16", GFX942_BOTH3(u16, u32{a} * b + c));
  vector("v_pk_lshlrev_b16", GFX942_BOTH2(u16, b << (a & 15)));
  vector("v_pk_lshrrev_b16", GFX942_BOTH2(u16, b >> (a & 15)));
  vector("v_pk_ashrrev_i16", GFX942_BOTH2(s16, b >> (a & 15)));
  vector("v_pk_min_u16", GFX942_BOTH2(u16, std::min(a, b)));
  vector("v_pk_max_u16", GFX942_BOTH2(u16, std::max(a, b)));
  vector("v_pk_min_i16", GFX942_BOTH2(s16, std::min(a, b)));
  vector("v_pk_max_i16", GFX942_BOTH2(s16, std::max(a, b)));
  vector("v_pk_add_u16 clamp", GFX942_BOTH2(u16, std::min(a + b, 0xffff)));
  vector("v_pk_sub_u16 clamp", GFX942_BOTH2(u16, std::max(a - b, 0)));
  vector("v_pk_add_i16 clamp", GFX942_BOTH2(s16, std::clamp(a + b, -32768, 32767)));
  vector("v_pk_sub_i16 clamp", GFX942_BOTH2(s16, std::clamp(a - b, -32768, 32767)));
}

void add_float_halves() {
  vector("v_pk_add_f16", GFX942_BOTH2(f16, sum(a, b)));
  vector("v_pk_mul_f16", GFX942_BOTH2(f16, product(a, b)));
  vector("v_pk_min_f16", GFX942_BOTH2(f16, smaller(a, b)));
  vector("v_pk_max_f16", GFX942_BOTH2(f16, larger(a, b)));
  vector("v_pk_fma_f16", GFX942_BOTH3(f16, fused(a, b, c)));
}

}  // namespace

void add_vector_packed() {
  add_words();
  add_integer_halves();
  add_float_halves();
}

}  // namespace gfx942
