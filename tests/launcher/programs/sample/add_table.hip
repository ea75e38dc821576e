// Add to each element the entry of a table that its position names.
//
//   out[i] = x[i] + table[i % table_size]
//
//   x      f32 [count]
//   table  f32 [table_size], a workspace that its owner filled once
//   out    f32 [count]
//
// Reference   tests/launcher/sample.py
// Work split  one thread an element, 256 a workgroup.
#include "threads.h"

namespace sample {

extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void add_table(
    const float* x, const float* table, float* out, unsigned count, unsigned table_size) {
  const unsigned element = element_index();
  if (element >= count) return;
  out[element] = x[element] + table[element % table_size];
}

}  // namespace sample
