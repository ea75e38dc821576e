// Multiply each row of a matrix by a number of its own and one that all share.
//
//   out[r, c] = x[r, c] * row_scale[r] * factor
//
//   x          f32 [rows, columns], contiguous
//   row_scale  f32 [rows]
//   out        f32 [rows, columns]
//
// Reference   tests/launcher/sample.py
// Work split  one thread an element, 256 a workgroup.
#include "threads.h"

namespace sample {

extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void scale_rows(
    const float* x, const float* row_scale, float* out, float factor, int rows, int columns) {
  const unsigned element = element_index();
  if (element >= static_cast<unsigned>(rows) * static_cast<unsigned>(columns)) return;
  const unsigned row = element / static_cast<unsigned>(columns);
  out[element] = x[element] * row_scale[row] * factor;
}

}  // namespace sample
