// Lanes of a wave against bits of a mask, and operands outside the vector instructions' driver.
#pragma once
#include "wave.h"

namespace gfx942 {

// out[lane] = 0 or 1.
inline void spread_bits(u64 mask, u32* out) {
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = mask >> lane & 1;
}

// The mask of lanes whose word is 1; words are 0 or 1.
inline u64 gather_bits(const u32* words) {
  u64 mask = 0;
  for (int byte = 0; byte < 8; ++byte) {
    u32 bits = 0;
    for (int k = 0; k < 8; ++k) bits |= words[8 * byte + k] << k;
    mask |= static_cast<u64>(bits) << 8 * byte;
  }
  return mask;
}

// out[lane] = value[lane] where the lane's bit is set.
inline void blend(u32* out, const u32* value, u64 lanes) {
  if (lanes == kAllLanes) {
    std::memcpy(out, value, kLanes * sizeof(u32));
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const u32 bits = static_cast<u32>(lanes >> 32 * half);
    for (int l = 0; l < 32; ++l) {
      const u32 take = 0 - (bits >> l & 1);
      const int lane = 32 * half + l;
      out[lane] = (value[lane] & take) | (out[lane] & ~take);
    }
  }
}

// vccz, execz or scc, by Operand::index.
inline u32 condition(Wave& wave, int index) {
  switch (index) {
    case 0:
      return wave.read_scalar64(kVcc) == 0;
    case 1:
      return wave.exec() == 0;
    default:
      return wave.scc;
  }
}

// A scalar operand of one or two words.
inline u64 scalar_value(Wave& wave, const Operand& o) {
  switch (o.kind) {
    case kScalar:
      return o.words == 2 ? wave.read_scalar64(o.index) : wave.read_scalar(o.index);
    case kCondition:
      return condition(wave, o.index);
    default:
      return o.value;
  }
}

// Source `slot` of a vector instruction, with its modifiers, for `lanes`.
Source vector_source(Wave& wave, const Instruction& i, int slot, u64 lanes);

inline int first_lane(u64 lanes) { return lanes == 0 ? -1 : std::countr_zero(lanes); }

}  // namespace gfx942
