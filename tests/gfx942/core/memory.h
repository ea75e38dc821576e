// Access to buffers, LDS and scratch by the lanes of a wave.
#pragma once
#include "lanes.h"
#include "registry.h"

namespace gfx942 {

// How the bytes of one load or store become register words.
enum Extend : int {
  kWords,     // whole words
  kZero,      // a byte or half, zero above
  kSign,      // a byte or half, its sign above
  kLowHalf,   // d16: into (or out of) the lower half, the upper one stays
  kHighHalf,  // d16_hi
  kLowHalfSigned,
  kHighHalfSigned
};

enum AtomicKind : int {
  kSwap,
  kCompareSwap,
  kAdd,
  kSub,
  kReverseSub,
  kSignedMin,
  kUnsignedMin,
  kSignedMax,
  kUnsignedMax,
  kAnd,
  kOr,
  kXor,
  kIncrement,
  kDecrement,
  kAddF32,
  kAddF64,
  kMinF64,
  kMaxF64,
  kAddPairF16,
  kAddPairBf16,
  kMinF32,
  kMaxF32
};

// The loads, stores and atomics that global, flat, scratch and buffer instructions share, by what
// follows global_load_, global_store_ or global_atomic_ in their names.
struct Transfer {
  const char* name;
  int num_bytes;
  Extend extend;
};
inline constexpr Transfer kLoads[] = {{"ubyte", 1, kZero},
                                      {"sbyte", 1, kSign},
                                      {"ushort", 2, kZero},
                                      {"sshort", 2, kSign},
                                      {"dword", 4, kWords},
                                      {"dwordx2", 8, kWords},
                                      {"dwordx3", 12, kWords},
                                      {"dwordx4", 16, kWords},
                                      {"ubyte_d16", 1, kLowHalf},
                                      {"ubyte_d16_hi", 1, kHighHalf},
                                      {"sbyte_d16", 1, kLowHalfSigned},
                                      {"sbyte_d16_hi", 1, kHighHalfSigned},
                                      {"short_d16", 2, kLowHalf},
                                      {"short_d16_hi", 2, kHighHalf}};
inline constexpr Transfer kStores[] = {{"byte", 1, kZero},      {"byte_d16_hi", 1, kHighHalf},
                                       {"short", 2, kZero},     {"short_d16_hi", 2, kHighHalf},
                                       {"dword", 4, kWords},    {"dwordx2", 8, kWords},
                                       {"dwordx3", 12, kWords}, {"dwordx4", 16, kWords}};

struct AtomicName {
  const char* name;
  int num_bytes;
  AtomicKind kind;
};
inline constexpr AtomicName kAtomics[] = {{"swap", 4, kSwap},
                                          {"swap_x2", 8, kSwap},
                                          {"cmpswap", 4, kCompareSwap},
                                          {"cmpswap_x2", 8, kCompareSwap},
                                          {"add", 4, kAdd},
                                          {"add_x2", 8, kAdd},
                                          {"sub", 4, kSub},
                                          {"sub_x2", 8, kSub},
                                          {"smin", 4, kSignedMin},
                                          {"smin_x2", 8, kSignedMin},
                                          {"umin", 4, kUnsignedMin},
                                          {"umin_x2", 8, kUnsignedMin},
                                          {"smax", 4, kSignedMax},
                                          {"smax_x2", 8, kSignedMax},
                                          {"umax", 4, kUnsignedMax},
                                          {"umax_x2", 8, kUnsignedMax},
                                          {"and", 4, kAnd},
                                          {"and_x2", 8, kAnd},
                                          {"or", 4, kOr},
                                          {"or_x2", 8, kOr},
                                          {"xor", 4, kXor},
                                          {"xor_x2", 8, kXor},
                                          {"inc", 4, kIncrement},
                                          {"inc_x2", 8, kIncrement},
                                          {"dec", 4, kDecrement},
                                          {"dec_x2", 8, kDecrement},
                                          {"add_f32", 4, kAddF32},
                                          {"add_f64", 8, kAddF64},
                                          {"min_f64", 8, kMinF64},
                                          {"max_f64", 8, kMaxF64},
                                          {"pk_add_f16", 4, kAddPairF16},
                                          {"pk_add_bf16", 4, kAddPairBf16}};

// Where each active lane's bytes lie on the host.
struct Places {
  u8* at[kLanes];
};

// The bytes of `num_bytes` at `address`, if a buffer holds all of them.
// Throws OutOfBounds (and ReadOnly for a store) otherwise.
u8* host_bytes(Wave& wave, u64 address, u32 num_bytes, bool store, int lane);

// Count an instruction's active lanes and the distinct 64-byte segments it touches.
void count_segments(Wave& wave, const u64* addresses, u64 lanes, u32 num_bytes);

// Load each lane's bytes into the vector registers from `first` on.
void load_lanes(Wave& wave, const Places& places, u64 lanes, int first, u32 num_bytes, int extend);

// The word that `extend` leaves in a register that held `old`.
u32 loaded_word(const u8* bytes, u32 num_bytes, int extend, u32 old);

// Store each lane's bytes from the vector registers from `first` on.
void store_lanes(Wave& wave, const Places& places, u64 lanes, int first, u32 num_bytes, int extend);

// Do an atomic operation lane after lane. `operand`, and `compared` for a compare-and-swap (else
// -1), are the first vector registers of the sources; the old values go to `out` if it is not
// negative.
void atomic_lanes(Wave& wave, const Places& places, u64 lanes, int operand, int compared, int out,
                  u32 num_bytes, int kind);

// LDS: the lane's bytes, inside what the kernel was given; with the checks for races and for words
// never written.
enum class LdsUse { kRead, kWrite, kAtomic };
u8* lds_bytes(Wave& wave, u64 address, u32 num_bytes, LdsUse use, int lane);

// Check the registers of a load's result, before the load is issued to `queue`: another one may be
// under way to the same register only if the two return in order.
void claim_loaded(Wave& wave, Queue& queue, int first, int count, u64 lanes);

inline int words_of(u32 num_bytes) { return static_cast<int>((num_bytes + 3) / 4); }

}  // namespace gfx942
