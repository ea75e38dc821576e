// Integer and float atomics on global memory and on LDS.
#include "gfx942.h"

#define AGENT __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT
#define GROUP __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP

constexpr u32 kBins = 64;

// bins[v] += number of values equal to v: counted in LDS first. values [count], below 64.
KERNEL(256) void histogram(const u32* values, u32* bins, u32 count) {
  SHARED static u32 local_bins[kBins];
  const u32 t = thread_id();
  if (t < kBins) local_bins[t] = 0;
  barrier();
  for (u32 i = global_id(); i < count; i += 4 * 256) {
    __hip_atomic_fetch_add(&local_bins[values[i]], 1u, GROUP);
  }
  barrier();
  if (t < kBins) __hip_atomic_fetch_add(&bins[t], local_bins[t], AGENT);
}

// Each thread takes a ticket: tickets[k] = the thread that came k-th.
KERNEL(256) void tickets(u32* next, u32* taken) {
  const u32 mine = __hip_atomic_fetch_add(next, 1u, AGENT);
  taken[mine] = global_id();
}

// The extremes and the sum of values, as u32, s32, u64 and float.
KERNEL(256)
void extremes(const int* values, int* low, u32* high, u64* sum, float* total, u32 count) {
  const u32 i = global_id();
  if (i >= count) return;
  const int value = values[i];
  __hip_atomic_fetch_min(low, value, AGENT);
  __hip_atomic_fetch_max(high, (u32)value, AGENT);
  __hip_atomic_fetch_add(sum, (u64)(long long)value, AGENT);
  __hip_atomic_fetch_add(total, (float)value, AGENT);
}

// product = product * factors[i] mod 2^32 for every i, by compare and swap.
KERNEL(64) void multiply_all(const u32* factors, u32* product) {
  const u32 factor = factors[thread_id()];
  u32 seen = *product;
  while (!__hip_atomic_compare_exchange_strong(product, &seen, seen * factor, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) {
  }
}
