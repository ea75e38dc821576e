// LDS: reads, writes, atomics and the permutes that go through its crossbar. ISA guide, chapter 11
// (data share operations).
//
// Operands, as decode.py lays them down: in[0] the address, in[1] and in[2] the data. An offset is
// added to every address; read2 and write2 have two, in units of their element (64 of them for
// st64).
#include <algorithm>

#include "memory.h"

namespace gfx942 {
namespace {

// Two accesses of one word race if no barrier lies between, one writes, and not both are atomic.
void check_race(Wave& wave, LdsWord& word, LdsUse use, u64 address, int lane) {
  const s16 me = static_cast<s16>(wave.number);
  const u32 epoch = wave.group->epoch;
  const auto race = [&](u64 other_pc, const char* what) {
    throw Fault{FaultKind::kLdsRace, lane, address, what, static_cast<s64>(other_pc)};
  };
  const bool writes = use != LdsUse::kRead;
  if (word.written_in >= epoch && word.writer != me &&
      !(use == LdsUse::kAtomic && word.written_by_atomic)) {
    race(word.write_pc, writes ? "written by two waves without a barrier between"
                               : "read without a barrier since another wave wrote it");
  }
  if (writes && word.read_in >= epoch && (word.reader != me || word.read_by_many)) {
    race(word.read_pc, "written without a barrier since another wave read it");
  }
}

void note_use(Wave& wave, LdsWord& word, LdsUse use) {
  const s16 me = static_cast<s16>(wave.number);
  const u32 epoch = wave.group->epoch;
  if (use == LdsUse::kRead) {
    word.read_by_many = word.read_in == epoch && (word.read_by_many || word.reader != me);
    word.read_in = epoch;
    word.reader = me;
    word.read_pc = wave.now->pc;
  } else {
    word.written_in = epoch;
    word.writer = me;
    word.write_pc = wave.now->pc;
    word.written_by_atomic = use == LdsUse::kAtomic;
  }
}

// The addresses of the active lanes, before the result may overwrite them.
void addresses_of(Wave& wave, const Instruction& i, u64 lanes, u64* addresses) {
  wave.check_read(i.in[0].index, lanes);
  for (int lane = 0; lane < kLanes; ++lane) addresses[lane] = wave.vector[i.in[0].index][lane];
}

Places places_of(Wave& wave, const u64* addresses, u64 lanes, s32 offset, u32 num_bytes,
                 LdsUse use) {
  Places places{};
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = addresses[lane] + static_cast<u64>(offset);
    if (use == LdsUse::kAtomic && address % num_bytes != 0) {
      throw Fault{FaultKind::kMisaligned, lane, address, "LDS atomic"};
    }
    places.at[lane] = lds_bytes(wave, address, num_bytes, use, lane);
  }
  reinterpret_cast<u64*>(wave.launch->lanes)[wave.launch->index(wave)] +=
      static_cast<u64>(std::popcount(lanes));
  return places;
}

void read(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  u64 addresses[kLanes];
  addresses_of(wave, i, exec, addresses);
  const Places places = places_of(wave, addresses, exec, i.offset, num_bytes, LdsUse::kRead);
  claim_loaded(wave, wave.lds_and_scalar, i.out.index, words, exec);
  load_lanes(wave, places, exec, i.out.index, num_bytes, opcode.variant);
  wave.issue(wave.lds_and_scalar, i.out.index, words, exec);
}

void write(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  u64 addresses[kLanes];
  addresses_of(wave, i, exec, addresses);
  for (int k = 0; k < words_of(num_bytes); ++k) wave.check_read(i.in[1].index + k, exec);
  const Places places = places_of(wave, addresses, exec, i.offset, num_bytes, LdsUse::kWrite);
  store_lanes(wave, places, exec, i.in[1].index, num_bytes, opcode.variant);
  wave.issue(wave.lds_and_scalar, -1, 0, exec);
}

// `variant` is what one step of an offset means, in bytes.
void read_two(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  u64 addresses[kLanes];
  addresses_of(wave, i, exec, addresses);
  const Places first =
      places_of(wave, addresses, exec, i.offset * opcode.variant, num_bytes, LdsUse::kRead);
  const Places second =
      places_of(wave, addresses, exec, i.offset1 * opcode.variant, num_bytes, LdsUse::kRead);
  claim_loaded(wave, wave.lds_and_scalar, i.out.index, 2 * words, exec);
  load_lanes(wave, first, exec, i.out.index, num_bytes, kWords);
  load_lanes(wave, second, exec, i.out.index + words, num_bytes, kWords);
  wave.issue(wave.lds_and_scalar, i.out.index, 2 * words, exec);
}

void write_two(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  u64 addresses[kLanes];
  addresses_of(wave, i, exec, addresses);
  for (int k = 0; k < words_of(num_bytes); ++k) {
    wave.check_read(i.in[1].index + k, exec);
    wave.check_read(i.in[2].index + k, exec);
  }
  const Places first =
      places_of(wave, addresses, exec, i.offset * opcode.variant, num_bytes, LdsUse::kWrite);
  const Places second =
      places_of(wave, addresses, exec, i.offset1 * opcode.variant, num_bytes, LdsUse::kWrite);
  store_lanes(wave, first, exec, i.in[1].index, num_bytes, kWords);
  store_lanes(wave, second, exec, i.in[2].index, num_bytes, kWords);
  wave.issue(wave.lds_and_scalar, -1, 0, exec);
}

// For a compare-and-swap in[1] is what is compared and in[2] the new value.
void atomic(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  const bool compares = opcode.variant == kCompareSwap;
  u64 addresses[kLanes];
  addresses_of(wave, i, exec, addresses);
  for (int k = 0; k < words; ++k) {
    wave.check_read(i.in[1].index + k, exec);
    if (compares) wave.check_read(i.in[2].index + k, exec);
  }
  const Places places = places_of(wave, addresses, exec, i.offset, num_bytes, LdsUse::kAtomic);
  const int out = i.out.kind == kVector ? i.out.index : -1;
  if (out >= 0) claim_loaded(wave, wave.lds_and_scalar, out, words, exec);
  const int operand = compares ? i.in[2].index : i.in[1].index;
  const int compared = compares ? i.in[1].index : -1;
  atomic_lanes(wave, places, exec, operand, compared, out, num_bytes, opcode.variant);
  wave.issue(wave.lds_and_scalar, out, out >= 0 ? words : 0, exec);
}

// Make a result of words that `move(exec, moved)` takes from other lanes; counted as an LDS load.
template <class F>
void move_lanes(Wave& wave, const Instruction& i, F move) {
  const u64 exec = wave.exec();
  for (int slot = 0; slot < 2; ++slot) {
    if (i.in[slot].kind == kVector) wave.check_read(i.in[slot].index, exec);
  }
  claim_loaded(wave, wave.lds_and_scalar, i.out.index, 1, exec);
  u32 moved[kLanes] = {};
  move(exec, moved);
  blend(wave.vector[i.out.index], moved, exec);
  wave.issue(wave.lds_and_scalar, i.out.index, 1, exec);
}

// The lane that a lane's first source names, in bytes.
u32 named_lane(const Wave& wave, const Instruction& i, int lane) {
  return (wave.vector[i.in[0].index][lane] + static_cast<u32>(i.offset)) / 4 & 63;
}

// Each lane gets the word of the lane it names; of a lane that is off it gets 0.
void backward_permute(Wave& wave, const Instruction& i, const Opcode&) {
  move_lanes(wave, i, [&](u64 exec, u32* moved) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const u32 from = named_lane(wave, i, lane);
      if (exec >> from & 1) moved[lane] = wave.vector[i.in[1].index][from];
    }
  });
}

// Each lane's word goes to the lane it names; the highest sender wins, who gets none gets 0.
void forward_permute(Wave& wave, const Instruction& i, const Opcode&) {
  move_lanes(wave, i, [&](u64 exec, u32* moved) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (exec >> lane & 1) moved[named_lane(wave, i, lane)] = wave.vector[i.in[1].index][lane];
    }
  });
}

// The pattern stands in the offset: four lanes (bit 15), or and, or and xor masks within 32 lanes.
u32 swizzled_lane(u32 pattern, u32 lane) {
  if (pattern & 0x8000) return (lane & ~3u) | (pattern >> 2 * (lane & 3) & 3);
  const u32 in_half = ((lane & pattern) | pattern >> 5) ^ pattern >> 10;
  return (lane & 32) | (in_half & 31);
}

void swizzle(Wave& wave, const Instruction& i, const Opcode&) {
  move_lanes(wave, i, [&](u64 exec, u32* moved) {
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 from = swizzled_lane(static_cast<u32>(i.offset), lane);
      if (exec >> from & 1) moved[lane] = wave.vector[i.in[0].index][from];
    }
  });
}

void nothing(Wave&, const Instruction&, const Opcode&) {}

struct LdsAtomic {
  const char* name;
  const char* type;
  int num_bytes;
  AtomicKind kind;
};
constexpr LdsAtomic kLdsAtomics[] = {{"add", "u32", 4, kAdd},
                                     {"add", "u64", 8, kAdd},
                                     {"sub", "u32", 4, kSub},
                                     {"sub", "u64", 8, kSub},
                                     {"rsub", "u32", 4, kReverseSub},
                                     {"rsub", "u64", 8, kReverseSub},
                                     {"inc", "u32", 4, kIncrement},
                                     {"inc", "u64", 8, kIncrement},
                                     {"dec", "u32", 4, kDecrement},
                                     {"dec", "u64", 8, kDecrement},
                                     {"min", "i32", 4, kSignedMin},
                                     {"min", "i64", 8, kSignedMin},
                                     {"max", "i32", 4, kSignedMax},
                                     {"max", "i64", 8, kSignedMax},
                                     {"min", "u32", 4, kUnsignedMin},
                                     {"min", "u64", 8, kUnsignedMin},
                                     {"max", "u32", 4, kUnsignedMax},
                                     {"max", "u64", 8, kUnsignedMax},
                                     {"and", "b32", 4, kAnd},
                                     {"and", "b64", 8, kAnd},
                                     {"or", "b32", 4, kOr},
                                     {"or", "b64", 8, kOr},
                                     {"xor", "b32", 4, kXor},
                                     {"xor", "b64", 8, kXor},
                                     {"cmpst", "b32", 4, kCompareSwap},
                                     {"cmpst", "b64", 8, kCompareSwap},
                                     {"add", "f32", 4, kAddF32},
                                     {"add", "f64", 8, kAddF64},
                                     {"min", "f32", 4, kMinF32},
                                     {"max", "f32", 4, kMaxF32},
                                     {"pk_add", "f16", 4, kAddPairF16},
                                     {"pk_add", "bf16", 4, kAddPairBf16}};

constexpr Transfer kReads[] = {{"b32", 4, kWords},
                               {"b64", 8, kWords},
                               {"b96", 12, kWords},
                               {"b128", 16, kWords},
                               {"u8", 1, kZero},
                               {"i8", 1, kSign},
                               {"u16", 2, kZero},
                               {"i16", 2, kSign},
                               {"u8_d16", 1, kLowHalf},
                               {"u8_d16_hi", 1, kHighHalf},
                               {"i8_d16", 1, kLowHalfSigned},
                               {"i8_d16_hi", 1, kHighHalfSigned},
                               {"u16_d16", 2, kLowHalf},
                               {"u16_d16_hi", 2, kHighHalf}};
constexpr Transfer kWrites[] = {{"b8", 1, kZero},
                                {"b16", 2, kZero},
                                {"b8_d16_hi", 1, kHighHalf},
                                {"b16_d16_hi", 2, kHighHalf},
                                {"b32", 4, kWords},
                                {"b64", 8, kWords},
                                {"b96", 12, kWords},
                                {"b128", 16, kWords}};

}  // namespace

u8* lds_bytes(Wave& wave, u64 address, u32 num_bytes, LdsUse use, int lane) {
  Group& group = *wave.group;
  if (address >= group.lds.size() || num_bytes > group.lds.size() - address) {
    throw Fault{
        FaultKind::kOutOfBounds, lane, address,
        std::to_string(num_bytes) + " bytes of LDS, of " + std::to_string(group.lds.size())};
  }
  for (u64 k = address / 4; k <= (address + num_bytes - 1) / 4; ++k) {
    LdsWord& word = group.words[k];
    if (use != LdsUse::kWrite && word.written_in == 0) {
      word.written_in = 1;  // note it once
      word.writer = static_cast<s16>(wave.number);
      wave.note_uninitialised(-1);
    }
    if (num_bytes < 4) {  // two waves may own two bytes of a word: such accesses are not judged
      word.written_in = std::max(word.written_in, 1u);
      continue;
    }
    if (wave.launch->check_races) check_race(wave, word, use, address, lane);
    note_use(wave, word, use);
    if (use != LdsUse::kRead) wave.lds_written.push_back(static_cast<u32>(k));
  }
  return group.lds.data() + address;
}

void add_lds() {
  constexpr auto kClass = IssueClass::lds;
  for (const Transfer& t : kReads) {
    special(std::string("ds_read_") + t.name, "lds_read", "", kClass, read, t.num_bytes, t.extend);
  }
  for (const Transfer& t : kWrites) {
    special(std::string("ds_write_") + t.name, "lds_write", "", kClass, write, t.num_bytes,
            t.extend);
  }
  for (const int num_bytes : {4, 8}) {
    const std::string type = num_bytes == 4 ? "_b32" : "_b64";
    special("ds_read2" + type, "lds_read_two", "", kClass, read_two, num_bytes, num_bytes);
    special("ds_read2st64" + type, "lds_read_two", "", kClass, read_two, num_bytes, 64 * num_bytes);
    special("ds_write2" + type, "lds_write", "", kClass, write_two, num_bytes, num_bytes);
    special("ds_write2st64" + type, "lds_write", "", kClass, write_two, num_bytes, 64 * num_bytes);
  }
  for (const LdsAtomic& a : kLdsAtomics) {
    const std::string name = std::string("ds_") + a.name;
    special(name + "_" + a.type, "lds_write", "", kClass, atomic, a.num_bytes, a.kind);
    special(name + "_rtn_" + a.type, "lds_return", "", kClass, atomic, a.num_bytes, a.kind);
  }
  special("ds_wrxchg_rtn_b32", "lds_return", "", kClass, atomic, 4, kSwap);
  special("ds_wrxchg_rtn_b64", "lds_return", "", kClass, atomic, 8, kSwap);
  special("ds_bpermute_b32", "lds_return", "", kClass, backward_permute, 4);
  special("ds_permute_b32", "lds_return", "", kClass, forward_permute, 4);
  special("ds_swizzle_b32", "lds_return", "", kClass, swizzle, 4);
  special("ds_nop", "plain", "", kClass, nothing);
}

}  // namespace gfx942
