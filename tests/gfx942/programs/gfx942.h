// What the programs share: names for the attributes and builtins of clang's AMDGPU target. No
// header of HIP is needed to compile them.
#pragma once

#define KERNEL(most_threads) \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, most_threads)))
#define SHARED __attribute__((shared))
#define DEVICE static inline __attribute__((device))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef float f32x32 __attribute__((ext_vector_type(32)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

DEVICE u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 group_id() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 group_size() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE u32 global_id() { return group_id() * group_size() + thread_id(); }

// A barrier that orders LDS accesses, as __syncthreads() does.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
