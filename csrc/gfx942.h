// What the kernels of all rooms need of the compiler and the machine: kernel attributes, vector
// types, raw buffers, and the few instructions that C++ has no word for.
//
// Builtins only, so that any clang with the AMDGPU target compiles it: no HIP header, no device
// library. A wave has 64 lanes.
#pragma once

#define DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define SHARED __attribute__((shared))
// A kernel of exactly `threads` threads, compiled for at least `waves` waves on each SIMD, which
// gives it 512 / waves vector registers.
#define KERNEL(threads, waves)                                                     \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), \
                            amdgpu_waves_per_eu(waves))) void

namespace gfx942 {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32x2 = float __attribute__((ext_vector_type(2)));
using f32x4 = float __attribute__((ext_vector_type(4)));
using u32x2 = u32 __attribute__((ext_vector_type(2)));
using u32x4 = u32 __attribute__((ext_vector_type(4)));
using bf16x4 = short __attribute__((ext_vector_type(4)));  // the matrix unit's operand: four bf16

constexpr u32 kLanes = 64;

DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 workgroup_index() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 workgroup_index_y() { return __builtin_amdgcn_workgroup_id_y(); }
// The same in all lanes, so that the compiler keeps it in a scalar register.
DEVICE u32 uniform(u32 value) { return __builtin_amdgcn_readfirstlane(value); }

// A range of bytes. Loads past its end give 0 and stores past its end are dropped, in hardware and
// without a branch. Only `lane_offset` (and `constant`) may reach past the end: whether the scalar
// offset takes part in the check is told differently by different documents.
using Buffer = __amdgpu_buffer_rsrc_t;
constexpr u32 kRawBuffer = 0x00020000;    // word 3 of the descriptor: plain bytes
constexpr u32 kPastAnyEnd = 0x80000000u;  // a lane offset that no buffer reaches

DEVICE Buffer buffer_of(const void* base, u32 num_bytes) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, num_bytes, kRawBuffer);
}

DEVICE u32 load_u32(Buffer buffer, u32 lane_offset, u32 scalar_offset) {
  return __builtin_amdgcn_raw_buffer_load_b32(buffer, lane_offset, scalar_offset, 0);
}
DEVICE u32x4 load_u32x4(Buffer buffer, u32 lane_offset, u32 scalar_offset) {
  return __builtin_amdgcn_raw_buffer_load_b128(buffer, lane_offset, scalar_offset, 0);
}
DEVICE void store_upper_half(Buffer buffer, u32 lane_offset, u32 scalar_offset, u32 value) {
  __builtin_amdgcn_raw_buffer_store_b16(static_cast<u16>(value >> 16), buffer, lane_offset,
                                        scalar_offset, 0);
}
DEVICE void store_u32(Buffer buffer, u32 lane_offset, u32 scalar_offset, u32 value) {
  __builtin_amdgcn_raw_buffer_store_b32(value, buffer, lane_offset, scalar_offset, 0);
}
DEVICE void store_u32x4(Buffer buffer, u32 lane_offset, u32 scalar_offset, u32x4 value) {
  __builtin_amdgcn_raw_buffer_store_b128(value, buffer, lane_offset, scalar_offset, 0);
}

// A load of scalars: uniform address, memory that no one writes while the kernel runs.
template <class T>
DEVICE T load_uniform(const T* pointer) {
  return *reinterpret_cast<const __attribute__((address_space(4))) T*>(
      reinterpret_cast<u64>(pointer));
}

DEVICE u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
DEVICE float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }

DEVICE u32 rotate_right(u32 value, u32 count) {
  return __builtin_amdgcn_alignbit(value, value, count);
}

// The upper halves of two words in one: the first in the lower half.
DEVICE u32 upper_halves(u32 first, u32 second) {
  return __builtin_amdgcn_perm(second, first, 0x07060302u);
}
DEVICE u32 upper_halves(float first, float second) {
  return upper_halves(bits_of(first), bits_of(second));
}
// Two floats rounded to bf16's eight significant bits, to nearest, ties to even; the lower halves
// are 0. From 2^112 on, where the first product overflows, the result is NaN. A NaN stays one,
// which adding to the bits would not ensure: the matrix unit's NaN has all of them set.
DEVICE f32x2 rounded_to_bf16(f32x2 values) {
#pragma clang fp contract(off)
  const f32x2 shifted = values * 65537.0f;
  const f32x2 rest = values - shifted;
  return shifted + rest;
}
DEVICE u32 pack_bf16(f32x2 values) {
  const f32x2 rounded = rounded_to_bf16(values);
  return upper_halves(rounded.x, rounded.y);
}

DEVICE f32x2 fma(f32x2 a, f32x2 b, f32x2 c) { return __builtin_elementwise_fma(a, b, c); }

// Tell the compiler that a value is needed here and may have changed. What is computed before stays
// before: without it chains of arithmetic sink to their last use, and loads are waited for early.
template <class T>
DEVICE void pin(T& value) {
  asm volatile("" : "+v"(value));
}
// Nothing is moved across this point by the instruction scheduler.
DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

// All waves of the workgroup meet; what each wrote to LDS before is seen by all after. Loads from
// memory stay under way.
DEVICE void meet_over_lds() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

}  // namespace gfx942
