// Approximate functions of the vector unit. The hardware is within 1 ulp for f32 and f16 (ISA
// guide, chapter 12, VOP1); here each result is computed in f64 and rounded once, so it is the
// correctly rounded one but for about one case in 10^8. A kernel must not depend on which of the
// two neighbours it gets. f32 inputs and results that are denormal are flushed, as the guide says.
// v_rcp_f64, v_rsq_f64 and v_sqrt_f64, which the hardware gives to about 2^-28 only, are exact
// here.
#include "floats.h"
#include "registry.h"

namespace gfx942 {
namespace {

f32 flushed(f32 x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// f(x) with denormals flushed on both sides and NaNs as IEEE has them.
template <class F>
f32 approximated(f32 x, F f) {
  if (is_nan(x)) return quiet(x);
  const f32 result = static_cast<f32>(f(static_cast<f64>(flushed(x))));
  return is_nan(result) ? default_nan32() : flushed(result);
}

template <class F>
f16 approximated(f16 x, F f) {
  if (x != x) return quiet(x);
  const f64 result = f(static_cast<f64>(x));
  return is_nan(result) ? std::bit_cast<f16>(u16{0x7e00}) : static_cast<f16>(result);
}

template <class F>
f64 approximated(f64 x, F f) {
  if (is_nan(x)) return quiet(x);
  const f64 result = f(x);
  return is_nan(result) ? default_nan64() : result;
}

f64 power_of_two(f64 x) { return std::exp2(x); }
f64 logarithm(f64 x) { return std::log2(x); }
f64 reciprocal(f64 x) { return 1.0 / x; }
f64 root(f64 x) { return std::sqrt(x); }
f64 reciprocal_root(f64 x) { return 1.0 / std::sqrt(x); }
// The argument counts turns; beyond 256 turns the hardware gives sin 0 and cos 1. Brought to a
// quarter turn exactly, so that sin(0.5) is 0.
f64 sine_of_quarter(f64 turns) { return std::sin(2 * M_PI * turns); }
f64 sine(f64 turns) {
  if (std::fabs(turns) > 256) return turns * 0;
  const f64 rest = std::remainder(turns, 1.0);
  const f64 folded = rest > 0.25 ? 0.5 - rest : rest < -0.25 ? -0.5 - rest : rest;
  return sine_of_quarter(folded);
}
f64 cosine(f64 turns) {
  if (std::fabs(turns) > 256) return turns * 0 + 1;
  return sine_of_quarter(0.25 - std::fabs(std::remainder(turns, 1.0)));
}

}  // namespace

void add_vector_transcendental() {
  vector("v_exp_f32", [](f32 a) { return approximated(a, power_of_two); });
  vector("v_log_f32", [](f32 a) { return approximated(a, logarithm); });
  vector("v_rcp_f32", [](f32 a) { return approximated(a, reciprocal); });
  vector("v_rcp_iflag_f32", [](f32 a) { return approximated(a, reciprocal); });
  vector("v_rsq_f32", [](f32 a) { return approximated(a, reciprocal_root); });
  vector("v_sqrt_f32", [](f32 a) { return approximated(a, root); });
  vector("v_sin_f32", [](f32 a) { return approximated(a, sine); });
  vector("v_cos_f32", [](f32 a) { return approximated(a, cosine); });
  vector("v_exp_f16", [](f16 a) { return approximated(a, power_of_two); });
  vector("v_log_f16", [](f16 a) { return approximated(a, logarithm); });
  vector("v_rcp_f16", [](f16 a) { return approximated(a, reciprocal); });
  vector("v_rsq_f16", [](f16 a) { return approximated(a, reciprocal_root); });
  vector("v_sqrt_f16", [](f16 a) { return approximated(a, root); });
  vector("v_rcp_f64", [](f64 a) { return approximated(a, reciprocal); });
  vector("v_rsq_f64", [](f64 a) { return approximated(a, reciprocal_root); });
  vector("v_sqrt_f64", [](f64 a) { return approximated(a, root); });
}

}  // namespace gfx942
