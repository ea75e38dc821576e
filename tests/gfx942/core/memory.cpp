// Buffers, and what loads, stores and atomics have in common. ISA guide, chapters 9 to 11.
#include "memory.h"

#include <algorithm>
#include <cmath>

#include "floats.h"

namespace gfx942 {

u8* host_bytes(Wave& wave, u64 address, u32 num_bytes, bool store, int lane) {
  const Launch& launch = *wave.launch;
  const auto* begin = reinterpret_cast<const Allocation*>(launch.allocations);
  const Allocation* one = wave.last_allocation;  // most often it is the one of the lane before
  if (address - one->base >= one->num_bytes) {
    // The first buffer that starts above the address; the one before it may hold it.
    const auto* above =
        std::upper_bound(begin, begin + launch.num_allocations, address,
                         [](u64 a, const Allocation& other) { return a < other.base; });
    one = above == begin ? begin : above - 1;
    wave.last_allocation = one;
  }
  const u64 offset = address - one->base;
  if (offset < one->num_bytes && num_bytes <= one->num_bytes - offset) {
    if (store && !one->writable) throw Fault{FaultKind::kReadOnly, lane, address, "store"};
    return one->host + offset;
  }
  throw Fault{FaultKind::kOutOfBounds, lane, address,
              std::to_string(num_bytes) + (store ? " bytes stored" : " bytes loaded")};
}

void claim_loaded(Wave& wave, Queue& queue, int first, int count, u64 lanes) {
  for (int index = first; index < first + count; ++index) {
    if ((wave.pending[index] & lanes) != 0) {
      const Queue& other = &queue == &wave.vector_memory ? wave.lds_and_scalar : wave.vector_memory;
      for (const InFlight& one : other) {
        const bool same = one.first >= 0 && index >= one.first && index < one.first + one.count;
        if (same && (one.lanes & lanes) != 0) wave.refuse_write(index, lanes);
      }
    }
    wave.unwritten[index] &= ~lanes;
  }
}

void count_segments(Wave& wave, const u64* addresses, u64 lanes, u32 num_bytes) {
  // A table of the segments seen, by open addressing: at most 2 a lane, in twice as many places.
  u64 seen[256];
  bool used[256] = {};
  u64 distinct = 0;
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const u64 address = addresses[std::countr_zero(rest)];
    for (u64 segment = address >> 6; segment <= (address + num_bytes - 1) >> 6; ++segment) {
      u64 place = segment * 0x9e3779b97f4a7c15u >> 56;
      while (used[place] && seen[place] != segment) place = (place + 1) & 255;
      distinct += !used[place];
      used[place] = true;
      seen[place] = segment;
    }
  }
  const u64 index = wave.launch->index(wave);
  reinterpret_cast<u64*>(wave.launch->segments)[index] += distinct;
  reinterpret_cast<u64*>(wave.launch->lanes)[index] += static_cast<u64>(std::popcount(lanes));
}

u32 loaded_word(const u8* bytes, u32 num_bytes, int extend, u32 old) {
  u32 value = 0;
  std::memcpy(&value, bytes, num_bytes);
  const bool is_signed = extend == kSign || extend == kLowHalfSigned || extend == kHighHalfSigned;
  if (is_signed) {
    value = num_bytes == 1 ? static_cast<u32>(static_cast<s8>(value))
                           : static_cast<u32>(static_cast<s16>(value));
  }
  switch (extend) {
    case kLowHalf:
    case kLowHalfSigned:
      return (old & 0xffff0000) | (value & 0xffff);
    case kHighHalf:
    case kHighHalfSigned:
      return (old & 0xffff) | value << 16;
    default:
      return value;
  }
}

void load_lanes(Wave& wave, const Places& places, u64 lanes, int first, u32 num_bytes, int extend) {
  if (extend == kWords) {
    const int words = words_of(num_bytes);
    for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      for (int k = 0; k < words; ++k) {
        std::memcpy(&wave.vector[first + k][lane], places.at[lane] + 4 * k, 4);
      }
    }
    return;
  }
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    u32& word = wave.vector[first][lane];
    word = loaded_word(places.at[lane], num_bytes, extend, word);
  }
}

void store_lanes(Wave& wave, const Places& places, u64 lanes, int first, u32 num_bytes,
                 int extend) {
  const int words = words_of(num_bytes);
  const int shift = extend == kHighHalf ? 16 : 0;
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (int k = 0; k < words; ++k) {
      const u32 word = wave.vector[first + k][lane] >> shift;
      std::memcpy(places.at[lane] + 4 * k, &word, std::min(num_bytes - 4 * k, 4u));
    }
  }
}

namespace {

f32 bf16_value(u32 half) { return std::bit_cast<f32>(half << 16); }

// f32 to bf16, to nearest even.
u32 to_bf16(f32 x) {
  const u32 bits = std::bit_cast<u32>(x);
  if (is_nan(x)) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

u64 new_value(u64 old, u64 operand, u64 compared, u32 num_bytes, int kind) {
  const s64 signed_old = num_bytes == 4 ? static_cast<s32>(old) : static_cast<s64>(old);
  const s64 signed_operand = num_bytes == 4 ? static_cast<s32>(operand) : static_cast<s64>(operand);
  const f32 a = std::bit_cast<f32>(static_cast<u32>(old));
  const f32 b = std::bit_cast<f32>(static_cast<u32>(operand));
  const f64 c = std::bit_cast<f64>(old);
  const f64 d = std::bit_cast<f64>(operand);
  switch (kind) {
    case kSwap:
      return operand;
    case kCompareSwap:
      return old == compared ? operand : old;
    case kAdd:
      return old + operand;
    case kSub:
      return old - operand;
    case kReverseSub:
      return operand - old;
    case kSignedMin:
      return signed_operand < signed_old ? operand : old;
    case kSignedMax:
      return signed_operand > signed_old ? operand : old;
    case kUnsignedMin:
      return operand < old ? operand : old;
    case kUnsignedMax:
      return operand > old ? operand : old;
    case kAnd:
      return old & operand;
    case kOr:
      return old | operand;
    case kXor:
      return old ^ operand;
    case kIncrement:
      return old >= operand ? 0 : old + 1;
    case kDecrement:
      return old == 0 || old > operand ? operand : old - 1;
    case kAddF32:
      return std::bit_cast<u32>(sum(a, b));
    case kMinF32:
      return std::bit_cast<u32>(smaller(a, b));
    case kMaxF32:
      return std::bit_cast<u32>(larger(a, b));
    case kAddF64:
      return std::bit_cast<u64>(settled(c + d, c, d));
    case kMinF64:
      return std::bit_cast<u64>(is_nan(d) || c < d ? c : d);
    case kMaxF64:
      return std::bit_cast<u64>(is_nan(d) || c > d ? c : d);
    case kAddPairF16: {
      const auto x = std::bit_cast<Pair<f16>>(static_cast<u32>(old));
      const auto y = std::bit_cast<Pair<f16>>(static_cast<u32>(operand));
      return std::bit_cast<u32>(Pair<f16>{sum(x.lo, y.lo), sum(x.hi, y.hi)});
    }
    default: {  // kAddPairBf16
      const u32 x = static_cast<u32>(old);
      const u32 y = static_cast<u32>(operand);
      const u32 low = to_bf16(sum(bf16_value(x & 0xffff), bf16_value(y & 0xffff)));
      return low | to_bf16(sum(bf16_value(x >> 16), bf16_value(y >> 16))) << 16;
    }
  }
}

}  // namespace

void atomic_lanes(Wave& wave, const Places& places, u64 lanes, int operand, int compared, int out,
                  u32 num_bytes, int kind) {
  const auto value_of = [&](int first, int lane) {
    const u64 low = wave.vector[first][lane];
    return num_bytes == 8 ? low | static_cast<u64>(wave.vector[first + 1][lane]) << 32 : low;
  };
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    u64 old = 0;
    std::memcpy(&old, places.at[lane], num_bytes);
    const u64 with = compared >= 0 ? value_of(compared, lane) : 0;
    const u64 value = new_value(old, value_of(operand, lane), with, num_bytes, kind);
    std::memcpy(places.at[lane], &value, num_bytes);
    if (out >= 0) {
      wave.vector[out][lane] = static_cast<u32>(old);
      if (num_bytes == 8) wave.vector[out + 1][lane] = static_cast<u32>(old >> 32);
    }
  }
}

}  // namespace gfx942
