// Write down arguments of every width: what arrived is what was packed.
//
//   out[0..3] = the low and high words of `small` (i32), `wide` (u64) and `real` (f64), see below
//
//   out       u32 [6]
//   optional  f32 [any] or null: out[5] says whether it is null
//
// Reference   tests/launcher/test_launch.py
// Work split  one thread.

namespace sample {

extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void mixed_widths(
    unsigned* out, int small, unsigned long long wide, double real, const float* optional) {
  if (__builtin_amdgcn_workitem_id_x() != 0) return;
  out[0] = static_cast<unsigned>(small);
  out[1] = static_cast<unsigned>(wide);
  out[2] = static_cast<unsigned>(wide >> 32);
  const auto bits = __builtin_bit_cast(unsigned long long, real);
  out[3] = static_cast<unsigned>(bits);
  out[4] = static_cast<unsigned>(bits >> 32);
  out[5] = optional == nullptr;
}

}  // namespace sample
