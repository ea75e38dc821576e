// What all vector instructions share: reading operands with their modifiers, and writing results
// under EXEC, SDWA and DPP.
//
// ISA guide: chapter 6 (vector ALU operations, clamp), chapter 13 (SDWA and DPP encodings).
#include "lanes.h"
#include "registry.h"

namespace gfx942 {
namespace {

// Buffers of Wave::scratch_words: two per source, then the result, then its bits.
constexpr int kResult = 2 * kMaxInputs;
constexpr int kBits = kResult + 2;

constexpr int kIndexedOut = 3;  // the destination's bit of Wave::index_mode

u32 part_of(u32 word, u8 part, bool is_signed) {
  if (part == kDword) return word;
  if (part >= kWord0) {
    const u16 half = static_cast<u16>(word >> (16 * (part - kWord0)));
    return is_signed ? static_cast<u32>(static_cast<s16>(half)) : half;
  }
  const u8 byte = static_cast<u8>(word >> (8 * part));
  return is_signed ? static_cast<u32>(static_cast<s8>(byte)) : byte;
}

void fill(u32* words, u32 value) {
  for (int lane = 0; lane < kLanes; ++lane) words[lane] = value;
}

// The lane a DPP control reads for `lane`, or -1.
int dpp_source(u16 control, int lane) {
  const int row = lane & ~15;
  const int in_row = lane & 15;
  const int amount = control & 15;
  if (control < 0x100) return (lane & ~3) | (control >> (2 * (lane & 3)) & 3);  // quad_perm
  switch (control & 0x1f0) {
    case 0x100:  // row_shl
      return in_row + amount < 16 ? lane + amount : -1;
    case 0x110:  // row_shr
      return in_row >= amount ? lane - amount : -1;
    case 0x120:  // row_ror
      return row | ((in_row - amount) & 15);
    case 0x150:  // row_newbcast
      return row | amount;
  }
  switch (control) {
    case 0x130:  // wave_shl:1
      return lane < 63 ? lane + 1 : -1;
    case 0x134:  // wave_rol:1
      return (lane + 1) & 63;
    case 0x138:  // wave_shr:1
      return lane - 1;
    case 0x13c:  // wave_ror:1
      return (lane - 1) & 63;
    case 0x140:  // row_mirror
      return row | (15 - in_row);
    case 0x141:  // row_half_mirror
      return (lane & ~7) | (7 - (lane & 7));
    case 0x142:  // row_bcast:15
      return row - 1;
    case 0x143:  // row_bcast:31
      return lane >= 32 ? 31 : -1;
  }
  throw Fault{FaultKind::kUnknownInstruction, -1, 0, "DPP control"};
}

// Move the lanes of source 0 as DPP says; returns the lanes that may be written.
u64 apply_dpp(Wave& wave, const Instruction& i, Source& source) {
  const u64 exec = wave.exec();
  u64 writable = 0;
  for (int k = 0; k < i.in[0].words; ++k) {
    u32* moved = wave.scratch_words[k];
    alignas(64) u32 before[kLanes];
    std::memcpy(before, source.word[k], sizeof before);
    writable = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int from = dpp_source(i.dpp_control, lane);
      const bool valid = from >= 0 && (exec >> from & 1) != 0;
      moved[lane] = valid ? before[from] : 0;
      const bool enabled = (i.row_mask >> (lane >> 4) & 1) && (i.bank_mask >> (lane >> 2 & 3) & 1);
      writable |= static_cast<u64>(enabled && (valid || i.bound_zero)) << lane;
    }
    source.word[k] = moved;
  }
  return writable & exec;
}

// Source `slot` as the instruction sees it, without DPP.
Source raw_source(Wave& wave, const Operand& o, int slot, u64 lanes) {
  u32* buffer = wave.scratch_words[2 * slot];
  u32* buffer1 = wave.scratch_words[2 * slot + 1];
  Source s{{buffer, buffer1}};
  int first = 0;
  int second = 1;
  if (o.shape == kPairs) {
    first = o.select & 1;
    second = o.select >> 1 & 1;
  }
  switch (o.kind) {
    case kVector:
      for (int k = 0; k < o.words; ++k) {
        const int index = wave.indexed(o.index, slot) + (k == 0 ? first : second);
        wave.check_read(index, lanes);
        s.word[k] = wave.vector[index];
      }
      break;
    case kScalar:
      if (o.shape == kLaneBits) {
        spread_bits(wave.read_scalar64(o.index), buffer);
      } else {
        fill(buffer, wave.read_scalar(o.index + first));
        if (o.words == 2) fill(buffer1, wave.read_scalar(o.index + second));
      }
      break;
    case kConstant:
      fill(buffer, static_cast<u32>(o.value >> 32 * first));
      if (o.words == 2) fill(buffer1, static_cast<u32>(o.value >> 32 * second));
      break;
    case kCondition:
      fill(buffer, condition(wave, o.index));
      break;
    default:
      throw Fault{FaultKind::kUnknownInstruction, -1, 0, "operand missing"};
  }
  return s;
}

// Apply SDWA parts, op_sel, abs and neg; the result lies in the slot's buffers.
void modify(Wave& wave, const Operand& o, int slot, Source& s) {
  u32* buffer = wave.scratch_words[2 * slot];
  if (o.part != kDword) {
    for (int l = 0; l < kLanes; ++l) buffer[l] = part_of(s.word[0][l], o.part, o.sign_extend);
    s.word[0] = buffer;
  }
  if (o.shape == kHalves && o.select != 2) {
    const int low = o.select & 1 ? 16 : 0;
    const int high = o.select & 2 ? 16 : 0;
    for (int l = 0; l < kLanes; ++l) {
      const u32 word = s.word[0][l];
      buffer[l] = (word >> low & 0xffff) | (word >> high & 0xffff) << 16;
    }
    s.word[0] = buffer;
  }
  if (o.shape == kMixed && (o.select & 2)) {
    const int shift = o.select & 1 ? 16 : 0;
    for (int l = 0; l < kLanes; ++l) {
      const f16 half = std::bit_cast<f16>(static_cast<u16>(s.word[0][l] >> shift));
      buffer[l] = std::bit_cast<u32>(static_cast<f32>(half));
    }
    s.word[0] = buffer;
  }
  if (o.modified) {
    for (int k = 0; k < o.words; ++k) {
      u32* words = wave.scratch_words[2 * slot + k];
      const u32 keep = k == 0 ? o.keep0 : o.keep1;
      const u32 flip = k == 0 ? o.flip0 : o.flip1;
      for (int l = 0; l < kLanes; ++l) words[l] = (s.word[k][l] & keep) ^ flip;
      s.word[k] = words;
    }
  }
}

template <class T>
void clamp_lanes(const Target& t) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const T x = Words<T>::load(Source{{t.word[0], t.word[1]}}, lane);
    Words<T>::store(t, lane, x > T(0) ? (x < T(1) ? x : T(1)) : T(0));  // NaN becomes 0
  }
}

void clamp_result(u8 clamp, const Target& t) {
  switch (clamp) {
    case kClampF32:
      return clamp_lanes<f32>(t);
    case kClampF16:
      return clamp_lanes<f16>(t);
    case kClampF64:
      return clamp_lanes<f64>(t);
    case kClampF32x2:
      clamp_lanes<f32>(t);
      return clamp_lanes<f32>(Target{{t.word[1], nullptr}});
    case kClampF16x2:
      for (int lane = 0; lane < kLanes; ++lane) {
        Pair<f16> p = Words<Pair<f16>>::load(Source{{t.word[0], nullptr}}, lane);
        p.lo = p.lo > f16(0) ? (p.lo < f16(1) ? p.lo : f16(1)) : f16(0);
        p.hi = p.hi > f16(0) ? (p.hi < f16(1) ? p.hi : f16(1)) : f16(0);
        Words<Pair<f16>>::store(t, lane, p);
      }
  }
}

// The result word, put where SDWA's dst_sel or op_sel says, with the rest of `old`.
u32 placed(const Instruction& i, u32 old, u32 result) {
  if (i.merge == kKeepHigh) return (old & 0xffff0000) | (result & 0xffff);
  if (i.merge == kKeepLow) return (old & 0xffff) | result << 16;
  if (!i.sdwa || i.part == kDword) return result;
  const int width = i.part >= kWord0 ? 16 : 8;
  const int shift = i.part >= kWord0 ? 16 * (i.part - kWord0) : 8 * i.part;
  const u32 field = ((1u << width) - 1) << shift;
  const u32 value = result << shift & field;
  switch (i.unused) {
    case kPreserve:
      return (old & ~field) | value;
    case kSignExtend: {
      const bool negative = value >> (shift + width - 1) & 1;
      const u32 above = shift + width == 32 ? 0 : ~u32{0} << (shift + width);
      return value | (negative ? above : 0);
    }
    default:
      return value;
  }
}

}  // namespace

Source vector_source(Wave& wave, const Instruction& i, int slot, u64 lanes) {
  Source s = raw_source(wave, i.in[slot], slot, lanes);
  modify(wave, i.in[slot], slot, s);
  return s;
}

void execute_vector(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  u64 lanes = exec;
  Source in[kMaxInputs];
  for (int slot = 0; slot < i.num_in; ++slot) {
    in[slot] = raw_source(wave, i.in[slot], slot, exec);
    if (slot == 0 && i.dpp) lanes = apply_dpp(wave, i, in[0]);
    modify(wave, i.in[slot], slot, in[slot]);
  }

  u32* bits = wave.scratch_words[kBits];
  if (i.out.kind == kScalar) {  // a compare
    const Target result{{bits, nullptr}};
    opcode.lanes(in, result, nullptr);
    const u64 mask = gather_bits(bits) & lanes;
    wave.write_scalar64(i.out.index, mask);
    if (opcode.variant) wave.set_scalar64(kExec, mask);  // v_cmpx
    return;
  }

  const int out_index = wave.indexed(i.out.index, kIndexedOut);
  for (int k = 0; k < i.out.words; ++k) wave.check_write(out_index + k, lanes);
  const bool in_place = lanes == kAllLanes && !i.sdwa && i.merge == kWhole && !i.clamp;
  Target result;
  for (int k = 0; k < 2; ++k) {
    result.word[k] =
        in_place && k < i.out.words ? wave.vector[out_index + k] : wave.scratch_words[kResult + k];
  }
  opcode.lanes(in, result, bits);
  if (i.clamp) clamp_result(i.clamp, result);
  if (!in_place) {
    const bool whole = !i.sdwa && i.merge == kWhole;
    for (int k = 0; k < i.out.words; ++k) {
      u32* out = wave.vector[out_index + k];
      if (whole) {
        blend(out, result.word[k], lanes);
      } else {
        for (int l = 0; l < kLanes; ++l) {
          if (lanes >> l & 1) out[l] = placed(i, out[l], result.word[k][l]);
        }
      }
    }
  }
  if (i.out_mask.kind == kScalar) wave.write_scalar64(i.out_mask.index, gather_bits(bits) & exec);
}

}  // namespace gfx942
