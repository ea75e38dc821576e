// sum[i] = a[i] + b[i] for i < count; `count` need not fill the last workgroup.
#include "gfx942.h"

KERNEL(256) void vector_add(const float* a, const float* b, float* sum, u32 count) {
  const u32 i = global_id();
  if (i < count) sum[i] = a[i] + b[i];
}

// The same without the check: threads past the end reach past the buffers.
KERNEL(256) void vector_add_unchecked(const float* a, const float* b, float* sum) {
  const u32 i = global_id();
  sum[i] = a[i] + b[i];
}
