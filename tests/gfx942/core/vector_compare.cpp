// V_CMP_* and V_CMPX_*: a bit per lane; lanes that EXEC switches off give 0. ISA guide, chapter 3
// ("VCC: vector condition code") and chapter 12, VOPC.
#include "floats.h"
#include "registry.h"

namespace gfx942 {
namespace {

// One comparison under both names; v_cmpx also makes the bits the new EXEC.
template <class F>
void both(const std::string& name, F) {
  for (int writes_exec = 0; writes_exec < 2; ++writes_exec) {
    add_opcode((writes_exec ? "v_cmpx_" : "v_cmp_") + name, "vector", Lambda<F>::signature(),
               IssueClass::valu, execute_vector, &Lambda<F>::lanes, nullptr, 0, writes_exec);
  }
}

template <class T>
void add_integer_compares(const std::string& type) {
  both("f_" + type, [](T, T) { return false; });
  both("lt_" + type, [](T a, T b) { return a < b; });
  both("eq_" + type, [](T a, T b) { return a == b; });
  both("le_" + type, [](T a, T b) { return a <= b; });
  both("gt_" + type, [](T a, T b) { return a > b; });
  both("ne_" + type, [](T a, T b) { return a != b; });
  both("ge_" + type, [](T a, T b) { return a >= b; });
  both("t_" + type, [](T, T) { return true; });
}

template <class T>
void add_float_compares(const std::string& type) {
  both("f_" + type, [](T, T) { return false; });
  both("lt_" + type, [](T a, T b) { return a < b; });
  both("eq_" + type, [](T a, T b) { return a == b; });
  both("le_" + type, [](T a, T b) { return a <= b; });
  both("gt_" + type, [](T a, T b) { return a > b; });
  both("lg_" + type, [](T a, T b) { return a < b || a > b; });
  both("ge_" + type, [](T a, T b) { return a >= b; });
  both("o_" + type, [](T a, T b) { return a == a && b == b; });
  both("u_" + type, [](T a, T b) { return a != a || b != b; });
  both("nge_" + type, [](T a, T b) { return !(a >= b); });
  both("nlg_" + type, [](T a, T b) { return !(a < b || a > b); });
  both("ngt_" + type, [](T a, T b) { return !(a > b); });
  both("nle_" + type, [](T a, T b) { return !(a <= b); });
  both("neq_" + type, [](T a, T b) { return !(a == b); });
  both("nlt_" + type, [](T a, T b) { return !(a < b); });
  both("tru_" + type, [](T, T) { return true; });
}

// The bit of v_cmp_class's mask that belongs to a number.
template <class T>
u32 class_bit(T x, bool signalling) {
  const int negative = std::signbit(x);
  switch (std::fpclassify(x)) {
    case FP_NAN:
      return signalling ? 1 : 2;
    case FP_INFINITE:
      return negative ? 1 << 2 : 1 << 9;
    case FP_NORMAL:
      return negative ? 1 << 3 : 1 << 8;
    case FP_SUBNORMAL:
      return negative ? 1 << 4 : 1 << 7;
    default:
      return negative ? 1 << 5 : 1 << 6;
  }
}

}  // namespace

void add_vector_compare() {
  add_integer_compares<u16>("u16");
  add_integer_compares<s16>("i16");
  add_integer_compares<u32>("u32");
  add_integer_compares<s32>("i32");
  add_integer_compares<u64>("u64");
  add_integer_compares<s64>("i64");
  add_float_compares<f16>("f16");
  add_float_compares<f32>("f32");
  add_float_compares<f64>("f64");
  both("class_f32", [](f32 x, u32 mask) { return (class_bit(x, is_signalling(x)) & mask) != 0; });
  both("class_f64", [](f64 x, u32 mask) {
    const bool signalling = (std::bit_cast<u64>(x) >> 51 & 1) == 0;
    return (class_bit(x, signalling) & mask) != 0;
  });
}

}  // namespace gfx942
