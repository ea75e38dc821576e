// Arrays indexed at run time live in scratch; a function that is not inlined has a stack frame
// there.
#include "gfx942.h"

// out[i] = the i-th permutation step: a lane-private table shuffled by `swaps`.
KERNEL(128) void shuffle(const u32* swaps, u32* out, u32 num_swaps) {
  u32 table[24];
  const u32 t = thread_id();
  for (u32 k = 0; k < 24; ++k) table[k] = k * 100 + t;
  for (u32 k = 0; k < num_swaps; ++k) {
    const u32 x = (swaps[k] + t) % 24;
    const u32 y = (swaps[k] / 24 + t * k) % 24;
    const u32 kept = table[x];
    table[x] = table[y];
    table[y] = kept;
  }
  for (u32 k = 0; k < 24; ++k) out[t * 24 + k] = table[k];
}

template <u32 kWeights>
struct Node {
  u32 value;
  float weights[kWeights];
};

template <u32 kWeights>
__attribute__((device, noinline)) float weigh(Node<kWeights>* node, u32 depth) {
  float sum = 0;
  for (u32 k = 0; k <= depth % kWeights; ++k) sum += node->weights[k] * (float)k;
  node->value += depth;
  return sum;
}

// A pointer to a private object, passed to a function that is called: flat addresses.
template <u32 kWeights>
DEVICE void weigh_often(const float* weights, float* out, u32 rounds) {
  Node<kWeights> node;
  node.value = thread_id();
  for (u32 k = 0; k < kWeights; ++k) node.weights[k] = weights[thread_id() * kWeights + k];
  float total = 0;
  for (u32 r = 0; r < rounds; ++r) total += weigh<kWeights>(&node, node.value + r);
  out[thread_id()] = total + (float)node.value;
}

// So small an object clang keeps in LDS, so large a one in scratch.
KERNEL(64) void call_small(const float* weights, float* out, u32 rounds) {
  weigh_often<6>(weights, out, rounds);
}
KERNEL(64) void call_large(const float* weights, float* out, u32 rounds) {
  weigh_often<150>(weights, out, rounds);
}
