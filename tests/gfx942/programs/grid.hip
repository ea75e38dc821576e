// Ids of threads and kinds of arguments.
#include "gfx942.h"

struct Position {
  u32 x, y, z;
};

// seen[z][y][x] = the position of the thread in the grid.
KERNEL(256) void where_am_i(Position* seen) {
  const u32 x = group_id() * group_size() + thread_id();
  const u32 y = __builtin_amdgcn_workgroup_id_y() * __builtin_amdgcn_workgroup_size_y() +
                __builtin_amdgcn_workitem_id_y();
  const u32 z = __builtin_amdgcn_workgroup_id_z() * __builtin_amdgcn_workgroup_size_z() +
                __builtin_amdgcn_workitem_id_z();
  const u32 width = __builtin_amdgcn_grid_size_x();
  const u32 height = __builtin_amdgcn_grid_size_y();
  seen[(z * height + y) * width + x] = Position{x, y, z};
}

struct Mixed {
  int i;
  float f;
  long long l;
};

KERNEL(64)
void arguments(Mixed mixed, float f, int i, double d, const double* middle, const float* null,
               bool flag, double* out) {
  out[0] = mixed.i;
  out[1] = mixed.f;
  out[2] = (double)mixed.l;
  out[3] = f;
  out[4] = i;
  out[5] = d;
  out[6] = middle[0];
  out[7] = flag && null == nullptr;
}
