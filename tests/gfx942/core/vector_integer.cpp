// Integer arithmetic of the vector unit. ISA guide, chapter 12: VOP1, VOP2, VOP3.
#include <algorithm>

#include "registry.h"

namespace gfx942 {
namespace {

// The middle one of three.
template <class T>
T median(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

template <class T>
T saturated(s64 value, s64 low, s64 high) {
  return static_cast<T>(std::clamp(value, low, high));
}

s32 signed24(u32 x) { return static_cast<s32>(x << 8) >> 8; }
u32 unsigned24(u32 x) { return x & 0xffffff; }

u32 absolute_difference(u32 a, u32 b) { return a > b ? a - b : b - a; }

// Sum of the absolute differences of the four bytes.
u32 byte_differences(u32 a, u32 b) {
  u32 sum = 0;
  for (int k = 0; k < 32; k += 8) sum += absolute_difference(a >> k & 0xff, b >> k & 0xff);
  return sum;
}

// min, max, min3, max3 and med3 of one type.
template <class T>
void add_order(const std::string& type) {
  vector("v_min_" + type, [](T a, T b) { return std::min(a, b); });
  vector("v_max_" + type, [](T a, T b) { return std::max(a, b); });
  vector("v_min3_" + type, [](T a, T b, T c) { return std::min(std::min(a, b), c); });
  vector("v_max3_" + type, [](T a, T b, T c) { return std::max(std::max(a, b), c); });
  vector("v_med3_" + type, [](T a, T b, T c) { return median(a, b, c); });
}

void add_32_bit() {
  vector("v_add_u32", [](u32 a, u32 b) { return a + b; });
  vector("v_sub_u32", [](u32 a, u32 b) { return a - b; });
  vector("v_subrev_u32", [](u32 a, u32 b) { return b - a; });
  vector("v_add_i32", [](u32 a, u32 b) { return a + b; });
  vector("v_sub_i32", [](u32 a, u32 b) { return a - b; });
  // VOP3's clamp on an integer saturates.
  vector("v_add_u32 clamp", [](u32 a, u32 b) { return a + b < a ? ~u32{0} : a + b; });
  vector("v_sub_u32 clamp", [](u32 a, u32 b) { return a < b ? 0 : a - b; });
  vector("v_add_i32 clamp", [](s32 a, s32 b) {
    return saturated<s32>(static_cast<s64>(a) + b, INT32_MIN, INT32_MAX);
  });
  vector("v_sub_i32 clamp", [](s32 a, s32 b) {
    return saturated<s32>(static_cast<s64>(a) - b, INT32_MIN, INT32_MAX);
  });

  vector("v_add3_u32", [](u32 a, u32 b, u32 c) { return a + b + c; });
  vector("v_lshl_add_u32", [](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; });
  vector("v_add_lshl_u32", [](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); });
  vector("v_xad_u32", [](u32 a, u32 b, u32 c) { return (a ^ b) + c; });
  vector("v_lshl_add_u64", [](u64 a, u32 b, u64 c) { return (a << (b & 7)) + c; });

  vector("v_mul_lo_u32", [](u32 a, u32 b) { return a * b; });
  vector("v_mul_hi_u32",
         [](u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); });
  vector("v_mul_hi_i32",
         [](s32 a, s32 b) { return static_cast<s32>(static_cast<s64>(a) * b >> 32); });
  vector("v_mul_u32_u24", [](u32 a, u32 b) { return unsigned24(a) * unsigned24(b); });
  vector("v_mul_hi_u32_u24", [](u32 a, u32 b) {
    return static_cast<u32>(static_cast<u64>(unsigned24(a)) * unsigned24(b) >> 32);
  });
  vector("v_mul_i32_i24", [](u32 a, u32 b) {
    return static_cast<u32>(signed24(a)) * static_cast<u32>(signed24(b));
  });
  vector("v_mul_hi_i32_i24", [](u32 a, u32 b) {
    return static_cast<s32>(static_cast<s64>(signed24(a)) * signed24(b) >> 32);
  });
  vector("v_mad_u32_u24", [](u32 a, u32 b, u32 c) { return unsigned24(a) * unsigned24(b) + c; });
  vector("v_mad_i32_i24", [](u32 a, u32 b, u32 c) {
    return static_cast<u32>(signed24(a)) * static_cast<u32>(signed24(b)) + c;
  });

  vector("v_sad_u8", [](u32 a, u32 b, u32 c) { return byte_differences(a, b) + c; });
  vector("v_sad_hi_u8", [](u32 a, u32 b, u32 c) { return (byte_differences(a, b) << 16) + c; });
  vector("v_sad_u16", [](u32 a, u32 b, u32 c) {
    return absolute_difference(a & 0xffff, b & 0xffff) + absolute_difference(a >> 16, b >> 16) + c;
  });
  vector("v_sad_u32", [](u32 a, u32 b, u32 c) { return absolute_difference(a, b) + c; });

  add_order<u32>("u32");
  add_order<s32>("i32");
}

void add_carries() {
  using R = WithBit<u32>;
  vector("v_add_co_u32", [](u32 a, u32 b) { return R{a + b, a + b < a}; });
  vector("v_sub_co_u32", [](u32 a, u32 b) { return R{a - b, a < b}; });
  vector("v_subrev_co_u32", [](u32 a, u32 b) { return R{b - a, b < a}; });
  vector("v_addc_co_u32", [](u32 a, u32 b, Bit carry) {
    const u64 sum = static_cast<u64>(a) + b + carry.set;
    return R{static_cast<u32>(sum), sum >> 32 != 0};
  });
  vector("v_subb_co_u32", [](u32 a, u32 b, Bit borrow) {
    const u64 taken = static_cast<u64>(b) + borrow.set;
    return R{static_cast<u32>(a - taken), a < taken};
  });
  vector("v_subbrev_co_u32", [](u32 a, u32 b, Bit borrow) {
    const u64 taken = static_cast<u64>(a) + borrow.set;
    return R{static_cast<u32>(b - taken), b < taken};
  });
  vector("v_mad_u64_u32", [](u32 a, u32 b, u64 c) {
    const u64 sum = static_cast<u64>(a) * b + c;
    return WithBit<u64>{sum, sum < c};
  });
  vector("v_mad_i64_i32", [](s32 a, s32 b, s64 c) {
    s64 sum;
    const bool overflow = __builtin_add_overflow(static_cast<s64>(a) * b, c, &sum);
    return WithBit<s64>{sum, overflow};
  });
}

void add_16_bit() {
  vector("v_add_u16", [](u16 a, u16 b) { return static_cast<u16>(a + b); });
  vector("v_sub_u16", [](u16 a, u16 b) { return static_cast<u16>(a - b); });
  vector("v_subrev_u16", [](u16 a, u16 b) { return static_cast<u16>(b - a); });
  vector("v_add_i16", [](u16 a, u16 b) { return static_cast<u16>(a + b); });
  vector("v_sub_i16", [](u16 a, u16 b) { return static_cast<u16>(a - b); });
  vector("v_mul_lo_u16", [](u16 a, u16 b) { return static_cast<u16>(u32{a} * b); });
  vector("v_mad_u16",
         [](u16 a, u16 b, u16 c) { return KeepsHigh<u16>{static_cast<u16>(u32{a} * b + c)}; });
  vector("v_mad_i16",
         [](u16 a, u16 b, u16 c) { return KeepsHigh<u16>{static_cast<u16>(u32{a} * b + c)}; });
  vector("v_mad_u32_u16", [](u16 a, u16 b, u32 c) { return u32{a} * b + c; });
  vector("v_mad_i32_i16",
         [](s16 a, s16 b, s32 c) { return static_cast<u32>(s32{a} * b) + static_cast<u32>(c); });
  add_order<u16>("u16");
  add_order<s16>("i16");
}

// Sum of products of packed integers, and an accumulator. ISA guide, chapter 12: VOP3P.
template <class T, int kBits>
T dot(u32 a, u32 b, T c) {
  for (int k = 0; k < 32; k += kBits) {
    const T x = static_cast<T>(a << (32 - kBits - k)) >> (32 - kBits);
    const T y = static_cast<T>(b << (32 - kBits - k)) >> (32 - kBits);
    c = static_cast<T>(static_cast<u32>(c) + static_cast<u32>(x) * static_cast<u32>(y));
  }
  return c;
}

void add_dots() {
  vector("v_dot2_i32_i16", [](u32 a, u32 b, s32 c) { return dot<s32, 16>(a, b, c); });
  vector("v_dot2_u32_u16", [](u32 a, u32 b, u32 c) { return dot<u32, 16>(a, b, c); });
  vector("v_dot4_i32_i8", [](u32 a, u32 b, s32 c) { return dot<s32, 8>(a, b, c); });
  vector("v_dot4_u32_u8", [](u32 a, u32 b, u32 c) { return dot<u32, 8>(a, b, c); });
  vector("v_dot8_i32_i4", [](u32 a, u32 b, s32 c) { return dot<s32, 4>(a, b, c); });
  vector("v_dot8_u32_u4", [](u32 a, u32 b, u32 c) { return dot<u32, 4>(a, b, c); });
  vector("v_dot4c_i32_i8", [](u32 a, u32 b, Old<s32> c) { return dot<s32, 8>(a, b, c.value); });
  vector("v_dot2c_i32_i16", [](u32 a, u32 b, Old<s32> c) { return dot<s32, 16>(a, b, c.value); });
  vector("v_dot8c_i32_i4", [](u32 a, u32 b, Old<s32> c) { return dot<s32, 4>(a, b, c.value); });
}

}  // namespace

void add_vector_integer() {
  add_32_bit();
  add_carries();
  add_16_bit();
  add_dots();
}

}  // namespace gfx942
