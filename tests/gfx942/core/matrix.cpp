// MFMA on bf16 and f16, bit for bit. ISA guide, chapter 7 (matrix arithmetic instructions).
//
// Arithmetic: arXiv 2511.10909 probed the matrix units of CDNA3 and gives this model, which its
// package mmasim ships; test_matrix.py compares with that, bit by bit. Products are summed in
// groups of at most 8 along K. In a group, each product is truncated toward zero at 24 fractional
// bits below the group's largest exponent and the sum is exact. The sum and the accumulator are
// then brought to the larger of their exponents, rounding toward minus infinity at 32 and 24
// fractional bits, added, cut toward minus infinity at 31 fractional bits, and rounded to nearest
// even. Subnormal inputs count with their value. A NaN comes out as 0x7fffffff. EXEC is ignored.
#include <algorithm>
#include <cmath>

#include "lanes.h"
#include "registry.h"

namespace gfx942 {
namespace {

constexpr int kFraction = 24;     // of a product, and of the accumulator
constexpr int kSumFraction = 32;  // of a group's sum
constexpr int kResultFraction = 31;
constexpr int kZeroExponent = -999;  // of a product that is zero
constexpr int kMaxGroup = 8;

// A and B are M x K and K x M, in as many independent blocks as fill the wave.
struct Tile {
  int size;   // M
  int depth;  // K
  int blocks;
};
constexpr Tile kTiles[] = {{16, 16, 1}, {32, 8, 1}, {4, 4, 16}, {16, 4, 4}, {32, 4, 2}};

struct Format {
  int mantissa_bits;
  int lowest;  // exponent of the smallest normal number
};
constexpr Format kBf16{7, -126};
constexpr Format kF16{10, -14};

// An input matrix taken apart: value = mantissa * 2^(exponent - mantissa_bits), at
// [(block * depth + k) * size + row or column].
struct Input {
  alignas(64) s32 mantissa[4 * kLanes];
  alignas(64) s32 exponent[4 * kLanes];
  alignas(64) u16 bits[4 * kLanes];
  s32 largest = 0;       // exponent
  bool special = false;  // an infinity or a NaN is among them
};

void take_apart(Input& in, const Format& f) {
  const s32 fraction_mask = (1 << f.mantissa_bits) - 1;
  const s32 highest_field = 0x7fff >> f.mantissa_bits;
  s32 largest_field = 0;
  for (int k = 0; k < 4 * kLanes; ++k) {
    const s32 bits = in.bits[k];
    const s32 field = bits >> f.mantissa_bits & highest_field;
    const s32 magnitude = (bits & fraction_mask) | (field != 0) << f.mantissa_bits;
    in.mantissa[k] = bits >> 15 ? -magnitude : magnitude;
    in.exponent[k] = f.lowest + std::max(field, 1) - 1;
    largest_field = std::max(largest_field, field);
  }
  in.largest = f.lowest + largest_field - 1;
  in.special = largest_field == highest_field;
}

// Lane l of a 4-element operand holds row (or column) l mod M; its K values, and its block, follow
// from l / M: the groups of 4 along K first, then the blocks.
void load_input(const Wave& wave, int first, const Tile& tile, const Format& f, Input& in) {
  const int steps = tile.depth / 4;
  for (int j = 0; j < 4; ++j) {
    const u32* words = wave.vector[first + j / 2];
    const int shift = 16 * (j % 2);
    for (int group = 0; group < kLanes / tile.size; ++group) {
      const int k = group / steps * tile.depth + 4 * (group % steps) + j;
      for (int n = 0; n < tile.size; ++n) {
        in.bits[k * tile.size + n] = static_cast<u16>(words[group * tile.size + n] >> shift);
      }
    }
  }
  take_apart(in, f);
}

f64 value_of(const Input& in, int place, const Format& f) {
  const u16 bits = in.bits[place];
  return f.mantissa_bits == kBf16.mantissa_bits
             ? static_cast<f64>(std::bit_cast<f32>(static_cast<u32>(bits) << 16))
             : static_cast<f64>(std::bit_cast<f16>(bits));
}

f64 power(int exponent) { return std::ldexp(1.0, exponent); }

// One group by the words above, in f64; for infinities, NaNs and products that overflow.
f32 slow_group(const Input& a, int a_at, const Input& b, int b_at, int stride, int length,
               f32 accumulator, const Format& f) {
  const auto split = [](f64 x, int lowest, f64& significand, int& exponent) {
    if (!std::isfinite(x) || x == 0) {
      significand = x;
      exponent = x == 0 ? lowest : -1;
      return;
    }
    exponent = std::max(std::ilogb(x), lowest);
    significand = std::ldexp(x, -exponent);
  };
  f64 product[kMaxGroup];
  int exponent[kMaxGroup];
  int largest = 2 * kZeroExponent;
  for (int k = 0; k < length; ++k) {
    f64 sa, sb;
    int ea, eb;
    split(value_of(a, a_at + k * stride, f), f.lowest, sa, ea);
    split(value_of(b, b_at + k * stride, f), f.lowest, sb, eb);
    product[k] = sa * sb;
    exponent[k] = ea + eb;
    if ((std::fabs(product[k]) >= 2) + exponent[k] >= 128) product[k] *= INFINITY;
    if (product[k] == 0) exponent[k] = kZeroExponent;
    largest = std::max(largest, exponent[k]);
  }
  f64 dot = 0;
  for (int k = 0; k < length; ++k) {
    dot += std::trunc(product[k] * power(exponent[k] - largest + kFraction)) * power(-kFraction);
  }
  f64 sc;
  int ec;
  split(accumulator, -126, sc, ec);
  const int both = std::max(largest, ec);
  dot = std::floor(dot * power(largest - both + kSumFraction)) * power(-kSumFraction);
  sc = std::floor(sc * power(ec - both + kFraction)) * power(-kFraction);
  f64 sum;
  int exponent_of_sum;
  split((dot + sc) * power(both), -126, sum, exponent_of_sum);
  sum = std::floor(sum * power(kResultFraction)) * power(-kResultFraction);
  const f32 result = static_cast<f32>(sum * power(exponent_of_sum));
  return result != result ? std::bit_cast<f32>(0x7fffffffu) : result;
}

s64 shifted_down(s64 value, s32 by) { return value >> std::min(by, 63); }

// The sum of a group, in units of 2^(largest - 24), and the accumulator; both finite.
inline f32 combined(s32 dot, s32 largest, f32 accumulator) {
  const u32 bits = std::bit_cast<u32>(accumulator);
  const s32 field = static_cast<s32>(bits >> 23 & 0xff);
  const s32 magnitude = static_cast<s32>((bits & 0x7fffff) | (field != 0 ? 0x800000 : 0));
  const s32 mantissa = bits >> 31 ? -magnitude : magnitude;
  const s32 exponent = std::max(field, 1) - 127;
  const s32 both = std::max(largest, exponent);
  constexpr int kMore = kSumFraction - kFraction;
  const s64 aligned_dot = shifted_down(static_cast<s64>(dot) << kMore, both - largest);
  const s64 aligned_c = shifted_down(static_cast<s64>(mantissa) << 1, both - exponent) << kMore;
  const s64 sum = aligned_dot + aligned_c;
  const f64 as_double = static_cast<f64>(sum);
  const s32 leading = static_cast<s32>(std::bit_cast<u64>(as_double) >> 52 & 0x7ff) - 1023;
  const s32 exponent_of_sum = std::max(leading + both - kSumFraction, -126);
  const s32 cut = std::clamp(exponent_of_sum - both + kSumFraction - kResultFraction, 0, 63);
  const s64 kept = sum >> cut << cut;
  const f64 unit = std::bit_cast<f64>(static_cast<u64>(both - kSumFraction + 1023) << 52);
  return static_cast<f32>(static_cast<f64>(kept) * unit);
}

// One row of the result, kSize columns: acc[n] += sum over a group of a[k] * b[k][n].
template <int kSize>
void fast_group(const s32* a_mantissa, const s32* a_exponent, const s32* b_mantissa,
                const s32* b_exponent, int length, int up, f32* acc) {
  alignas(64) s32 product[kMaxGroup][kSize];
  alignas(64) s32 exponent[kMaxGroup][kSize];
  alignas(64) s32 largest[kSize];
  alignas(64) s32 dot[kSize] = {};
  std::fill_n(largest, kSize, kZeroExponent);
  for (int k = 0; k < length; ++k) {
    const s32 am = a_mantissa[k * kSize];
    const s32 ae = a_exponent[k * kSize];
    for (int n = 0; n < kSize; ++n) {
      product[k][n] = am * b_mantissa[k * kSize + n];
      exponent[k][n] = product[k][n] == 0 ? kZeroExponent : ae + b_exponent[k * kSize + n];
      largest[n] = std::max(largest[n], exponent[k][n]);
    }
  }
  for (int k = 0; k < length; ++k) {
    for (int n = 0; n < kSize; ++n) {
      const s32 magnitude =
          std::abs(product[k][n]) << up >> std::min(largest[n] - exponent[k][n], 31);
      dot[n] += product[k][n] < 0 ? -magnitude : magnitude;
    }
  }
  for (int n = 0; n < kSize; ++n) acc[n] = combined(dot[n], largest[n], acc[n]);
}

bool any_special(const f32* values, int count) {
  bool special = false;
  for (int n = 0; n < count; ++n) special |= (~std::bit_cast<u32>(values[n]) & 0x7f800000) == 0;
  return special;
}

template <int kSize>
void multiply_row(const Input& a, const Input& b, int a_at, int b_at, int depth, bool slow,
                  const Format& f, f32* acc) {
  for (int k = 0; k < depth; k += kMaxGroup) {
    const int length = std::min(depth - k, kMaxGroup);
    const int at = a_at + k * kSize;
    const int bt = b_at + k * kSize;
    if (slow || any_special(acc, kSize)) {
      for (int n = 0; n < kSize; ++n) {
        acc[n] = slow_group(a, at, b, bt + n, kSize, length, acc[n], f);
      }
    } else {
      fast_group<kSize>(a.mantissa + at, a.exponent + at, b.mantissa + bt, b.exponent + bt, length,
                        kFraction - 2 * f.mantissa_bits, acc);
    }
  }
}

// Where row `row` of block `block` lies: its register of the result, and its first lane.
void place_of_row(const Tile& tile, int block, int row, int& index, int& lane) {
  if (tile.size == 4) {
    index = row;
    lane = 4 * block;
    return;
  }
  const int groups = kLanes / tile.size;  // groups of 4 rows that lie side by side in the lanes
  const int registers = tile.size * tile.size / kLanes;
  index = block * registers + 4 * (row / (4 * groups)) + row % 4;
  lane = row / 4 % groups * tile.size;
}

template <int kSize>
void multiply(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const Tile& tile = kTiles[opcode.variant >> 1];
  const Format& f = opcode.variant & 1 ? kBf16 : kF16;
  for (int slot = 0; slot < 2; ++slot) {
    for (int k = 0; k < 2; ++k) wave.check_read(i.in[slot].index + k, kAllLanes);
  }
  Input a, b;
  load_input(wave, i.in[0].index, tile, f, a);
  load_input(wave, i.in[1].index, tile, f, b);
  const bool slow = a.special || b.special || a.largest + b.largest >= 127;

  alignas(64) f32 c[32][kLanes];
  for (int k = 0; k < i.out.words; ++k) {
    const Operand& from = i.in[2];
    if (from.kind == kVector) {
      wave.check_read(from.index + k, kAllLanes);
      std::memcpy(c[k], wave.vector[from.index + k], sizeof c[k]);
    } else {
      std::fill_n(c[k], kLanes, std::bit_cast<f32>(static_cast<u32>(from.value)));
    }
  }
  for (int block = 0; block < tile.blocks; ++block) {
    const int at = block * tile.depth * kSize;
    for (int row = 0; row < kSize; ++row) {
      int index, lane;
      place_of_row(tile, block, row, index, lane);
      multiply_row<kSize>(a, b, at + row, at, tile.depth, slow, f, &c[index][lane]);
    }
  }
  for (int k = 0; k < i.out.words; ++k) {
    wave.check_write(i.out.index + k, kAllLanes);
    std::memcpy(wave.vector[i.out.index + k], c[k], sizeof c[k]);
  }
}

}  // namespace

void add_matrix() {
  for (int number = 0; number < 5; ++number) {
    const Tile& s = kTiles[number];
    const std::string size = std::to_string(s.size);
    const std::string blocks = s.blocks > 1 ? "_" + std::to_string(s.blocks) + "b" : "";
    for (int is_bf16 = 0; is_bf16 < 2; ++is_bf16) {
      const std::string name = "v_mfma_f32_" + size + "x" + size + "x" + std::to_string(s.depth) +
                               blocks + (is_bf16 ? "_bf16" : "_f16");
      const Execute execute = s.size == 4    ? multiply<4>
                              : s.size == 16 ? multiply<16>
                                             : multiply<32>;
      special(name, "matrix", "", IssueClass::mfma, execute, 0, number * 2 + is_bf16);
    }
  }
}

}  // namespace gfx942
