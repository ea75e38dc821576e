// The number types of gfx942 operands, and how each lies in 32-bit register words.
//
// A vector register is 64 words, one per lane. An operand of two words is two registers, so its
// low words and its high words are two separate arrays. Words<T> says, for an operand type T: its
// name in signatures (decode.py reads it), how many words it spans, and how to load and store it.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace gfx942 {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f16 = _Float16;
using f32 = float;
using f64 = double;

constexpr int kLanes = 64;
constexpr u64 kAllLanes = ~u64{0};

// Two halves or two words that one packed instruction works on.
template <class T>
struct Pair {
  T lo, hi;
};

// A lane's bit of a 64-bit mask: a carry, or the condition of v_cndmask_b32.
struct Bit {
  u32 set;
  explicit operator bool() const { return set != 0; }
};

// What v_add_co_u32 and its like give: a value, and a bit for the mask destination.
template <class T>
struct WithBit {
  T value;
  bool bit;
};

// The destination as it was before: the accumulator of v_fmac_f32.
template <class T>
struct Old {
  T value;
};

// A 16-bit result that leaves the upper half of its register as it was (v_fma_f16, v_mad_u16).
// The other 16-bit results clear it.
template <class T>
struct KeepsHigh {
  T value;
};

// A source of v_fma_mix_f32: f32, or one half of the register as f16, by op_sel and op_sel_hi.
struct Mixed {
  f32 value;
};

// Where the words of one operand lie: word k of lane l is word[k][l].
struct Source {
  const u32* word[2];
};
struct Target {
  u32* word[2];
};

template <class T>
struct Words;

template <class T>
struct OneWord {
  static constexpr int kCount = 1;
  static T load(const Source& s, int lane) {
    if constexpr (sizeof(T) == 4) {
      return std::bit_cast<T>(s.word[0][lane]);
    } else {
      return std::bit_cast<T>(static_cast<u16>(s.word[0][lane]));
    }
  }
  static void store(const Target& t, int lane, T value) {
    if constexpr (sizeof(T) == 4) {
      t.word[0][lane] = std::bit_cast<u32>(value);
    } else {
      t.word[0][lane] = std::bit_cast<u16>(value);
    }
  }
};

template <class T>
struct TwoWords {
  static constexpr int kCount = 2;
  static T load(const Source& s, int lane) {
    return std::bit_cast<T>(s.word[0][lane] | static_cast<u64>(s.word[1][lane]) << 32);
  }
  static void store(const Target& t, int lane, T value) {
    const u64 bits = std::bit_cast<u64>(value);
    t.word[0][lane] = static_cast<u32>(bits);
    t.word[1][lane] = static_cast<u32>(bits >> 32);
  }
};

// Both halves in one word.
template <class T>
struct TwoHalves {
  static constexpr int kCount = 1;
  static Pair<T> load(const Source& s, int lane) {
    const u32 bits = s.word[0][lane];
    return {std::bit_cast<T>(static_cast<u16>(bits)),
            std::bit_cast<T>(static_cast<u16>(bits >> 16))};
  }
  static void store(const Target& t, int lane, Pair<T> value) {
    t.word[0][lane] = std::bit_cast<u16>(value.lo) | static_cast<u32>(std::bit_cast<u16>(value.hi))
                                                         << 16;
  }
};

#define GFX942_WORDS(type, base, text)         \
  template <>                                  \
  struct Words<type> : base {                  \
    static constexpr const char* kName = text; \
  };
GFX942_WORDS(u16, OneWord<u16>, "u16")
GFX942_WORDS(s16, OneWord<s16>, "s16")
GFX942_WORDS(f16, OneWord<f16>, "f16")
GFX942_WORDS(u32, OneWord<u32>, "u32")
GFX942_WORDS(s32, OneWord<s32>, "s32")
GFX942_WORDS(f32, OneWord<f32>, "f32")
GFX942_WORDS(u64, TwoWords<u64>, "u64")
GFX942_WORDS(s64, TwoWords<s64>, "s64")
GFX942_WORDS(f64, TwoWords<f64>, "f64")
GFX942_WORDS(Pair<u16>, TwoHalves<u16>, "u16x2")
GFX942_WORDS(Pair<s16>, TwoHalves<s16>, "s16x2")
GFX942_WORDS(Pair<f16>, TwoHalves<f16>, "f16x2")
#undef GFX942_WORDS

template <>
struct Words<Pair<f32>> {
  static constexpr const char* kName = "f32x2";
  static constexpr int kCount = 2;
  static Pair<f32> load(const Source& s, int lane) {
    return {std::bit_cast<f32>(s.word[0][lane]), std::bit_cast<f32>(s.word[1][lane])};
  }
  static void store(const Target& t, int lane, Pair<f32> value) {
    t.word[0][lane] = std::bit_cast<u32>(value.lo);
    t.word[1][lane] = std::bit_cast<u32>(value.hi);
  }
};

template <>
struct Words<Pair<u32>> {
  static constexpr const char* kName = "u32x2";
  static constexpr int kCount = 2;
  static Pair<u32> load(const Source& s, int lane) { return {s.word[0][lane], s.word[1][lane]}; }
  static void store(const Target& t, int lane, Pair<u32> value) {
    t.word[0][lane] = value.lo;
    t.word[1][lane] = value.hi;
  }
};

template <>
struct Words<Bit> {
  static constexpr const char* kName = "bit";
  static constexpr int kCount = 1;
  static Bit load(const Source& s, int lane) { return {s.word[0][lane]}; }
};

template <>
struct Words<bool> {
  static constexpr const char* kName = "bit";
  static constexpr int kCount = 1;
  static void store(const Target& t, int lane, bool value) { t.word[0][lane] = value; }
};

template <>
struct Words<Mixed> {
  static constexpr const char* kName = "mix";
  static constexpr int kCount = 1;
  static Mixed load(const Source& s, int lane) { return {std::bit_cast<f32>(s.word[0][lane])}; }
};

// Words of what wraps one of the types above; the name says how it is wrapped.
#define GFX942_WRAPPED(type, text)                                                            \
  template <>                                                                                 \
  struct Words<Old<type>> {                                                                   \
    static constexpr const char* kName = "old " text;                                         \
    static Old<type> load(const Source& s, int lane) { return {Words<type>::load(s, lane)}; } \
  };                                                                                          \
  template <>                                                                                 \
  struct Words<WithBit<type>> {                                                               \
    static constexpr const char* kName = text "+bit";                                         \
  };                                                                                          \
  template <>                                                                                 \
  struct Words<KeepsHigh<type>> {                                                             \
    static constexpr const char* kName = "keep " text;                                        \
    static void store(const Target& t, int lane, KeepsHigh<type> value) {                     \
      Words<type>::store(t, lane, value.value);                                               \
    }                                                                                         \
  };
GFX942_WRAPPED(u16, "u16")
GFX942_WRAPPED(f16, "f16")
GFX942_WRAPPED(u32, "u32")
GFX942_WRAPPED(s32, "s32")
GFX942_WRAPPED(f32, "f32")
GFX942_WRAPPED(u64, "u64")
GFX942_WRAPPED(s64, "s64")
GFX942_WRAPPED(f64, "f64")
#undef GFX942_WRAPPED

}  // namespace gfx942
