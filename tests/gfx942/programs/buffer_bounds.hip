// Buffer instructions check each dword against the descriptor's size; what is past it reads 0 and
// is not written.
#include "gfx942.h"

constexpr int kFlags = 0x00020000;  // raw buffer of 32-bit data

// copy: thread t moves 16 bytes at 16 t + scalar from `from` to `to`.
KERNEL(64) void copy_16_bytes(u32x4* from, u32x4* to, int from_bytes, int to_bytes, int scalar) {
  const __amdgpu_buffer_rsrc_t source =
      __builtin_amdgcn_make_buffer_rsrc(from, 0, from_bytes, kFlags);
  const __amdgpu_buffer_rsrc_t target = __builtin_amdgcn_make_buffer_rsrc(to, 0, to_bytes, kFlags);
  const int offset = (int)thread_id() * 16;
  const u32x4 value = __builtin_amdgcn_raw_buffer_load_b128(source, offset, scalar, 0);
  __builtin_amdgcn_raw_buffer_store_b128(value, target, offset, scalar, 0);
}

// The same with 1, 2, 4 and 8 bytes a thread.
KERNEL(64) void copy_narrow(u8* from, u8* to, int num_bytes) {
  const __amdgpu_buffer_rsrc_t source =
      __builtin_amdgcn_make_buffer_rsrc(from, 0, num_bytes, kFlags);
  const __amdgpu_buffer_rsrc_t target = __builtin_amdgcn_make_buffer_rsrc(to, 0, num_bytes, kFlags);
  const int t = (int)thread_id();
  const u8 byte = __builtin_amdgcn_raw_buffer_load_b8(source, t, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b8(byte, target, t, 0, 0);
  const u16 half = __builtin_amdgcn_raw_buffer_load_b16(source, 64 + 2 * t, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b16(half, target, 64 + 2 * t, 0, 0);
  const u32 word = __builtin_amdgcn_raw_buffer_load_b32(source, 192 + 4 * t, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32(word, target, 192 + 4 * t, 0, 0);
  const auto two = __builtin_amdgcn_raw_buffer_load_b64(source, 448 + 8 * t, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b64(two, target, 448 + 8 * t, 0, 0);
}
