// Buffer instructions with raw descriptors (stride 0), as compilers emit for a base and a size. ISA
// guide, chapter 9 (vector memory buffer instructions: addressing and range checking).
//
// A dword whose offset, the scalar offset included, reaches past the size is out of range: a load
// gives 0 for it, a store leaves it out, the rest of the lane's dwords are transferred.
//
// Operands, as decode.py lays them down: in[0] the vector offset (or none), in[1] the descriptor,
// in[2] the data of stores and atomics, in[3] the scalar offset.
#include <algorithm>

#include "memory.h"

namespace gfx942 {
namespace {

struct Descriptor {
  u64 base;
  u64 num_bytes;
};

Descriptor descriptor_of(Wave& wave, int first) {
  u32 word[4];
  for (int k = 0; k < 4; ++k) word[k] = wave.read_scalar(first + k);
  if (word[1] >> 16 != 0) {
    throw Fault{FaultKind::kUnknownInstruction, -1, 0,
                "buffer descriptor with a stride or swizzle"};
  }
  return {word[0] | static_cast<u64>(word[1]) << 32, word[2]};
}

// The offset of each lane's first byte.
void offsets_of(Wave& wave, const Instruction& i, u64 lanes, u64* offsets) {
  const u64 base = static_cast<u64>(i.offset) + scalar_value(wave, i.in[3]);
  if (i.in[0].kind == kVector) wave.check_read(i.in[0].index, lanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    offsets[lane] = base + (i.in[0].kind == kVector ? wave.vector[i.in[0].index][lane] : 0);
  }
}

// How many of a lane's bytes are in range: whole elements of 4 bytes, or of the access if smaller.
u32 bytes_in_range(const Descriptor& d, u64 offset, u32 num_bytes) {
  const u64 left = offset < d.num_bytes ? d.num_bytes - offset : 0;
  const u32 element = std::min(num_bytes, 4u);
  return static_cast<u32>(std::min<u64>(left, num_bytes)) / element * element;
}

// The transfer of one lane: where its bytes in range lie, and how many they are.
struct Part {
  u8* at;
  u32 num_bytes;
};

void parts_of(Wave& wave, const Instruction& i, u64 lanes, u32 num_bytes, bool store, Part* parts) {
  const Descriptor d = descriptor_of(wave, i.in[1].index);
  u64 offsets[kLanes];
  u64 addresses[kLanes];
  offsets_of(wave, i, lanes, offsets);
  u64 touched = 0;
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u32 inside = bytes_in_range(d, offsets[lane], num_bytes);
    addresses[lane] = d.base + offsets[lane];
    parts[lane] = {nullptr, inside};
    if (inside == 0) continue;
    parts[lane].at = host_bytes(wave, addresses[lane], inside, store, lane);
    touched |= u64{1} << lane;
  }
  count_segments(wave, addresses, touched, num_bytes);
}

void load(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  Part parts[kLanes];
  parts_of(wave, i, exec, num_bytes, false, parts);
  claim_loaded(wave, wave.vector_memory, i.out.index, words, exec);
  for (u64 rest = exec; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    u8 bytes[16] = {};
    if (parts[lane].at) std::memcpy(bytes, parts[lane].at, parts[lane].num_bytes);
    if (opcode.variant == kWords) {
      for (int k = 0; k < words; ++k) {
        std::memcpy(&wave.vector[i.out.index + k][lane], bytes + 4 * k, 4);
      }
    } else {
      u32& word = wave.vector[i.out.index][lane];
      word = loaded_word(bytes, num_bytes, opcode.variant, word);
    }
  }
  wave.issue(wave.vector_memory, i.out.index, words, exec);
}

void store(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  for (int k = 0; k < words_of(num_bytes); ++k) wave.check_read(i.in[2].index + k, exec);
  Part parts[kLanes];
  parts_of(wave, i, exec, num_bytes, true, parts);
  Places places{};
  // Lanes with fewer dwords in range are stored with the others that have as many.
  for (u32 inside = 1; inside <= num_bytes; ++inside) {
    u64 lanes = 0;
    for (u64 rest = exec; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (!parts[lane].at || parts[lane].num_bytes != inside) continue;
      places.at[lane] = parts[lane].at;
      lanes |= u64{1} << lane;
    }
    if (lanes != 0) store_lanes(wave, places, lanes, i.in[2].index, inside, opcode.variant);
  }
  wave.issue(wave.vector_memory, -1, 0, exec);
}

void atomic(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  for (int k = 0; k < i.in[2].words; ++k) wave.check_read(i.in[2].index + k, exec);
  Part parts[kLanes];
  parts_of(wave, i, exec, num_bytes, true, parts);
  Places places{};
  u64 lanes = 0;
  for (u64 rest = exec; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (!parts[lane].at || parts[lane].num_bytes != num_bytes) continue;
    places.at[lane] = parts[lane].at;
    lanes |= u64{1} << lane;
  }
  // The result takes the place of the operand; out of range it is 0.
  const int out = i.returns ? i.in[2].index : -1;
  const int compared = opcode.variant == kCompareSwap ? i.in[2].index + words : -1;
  if (i.returns) claim_loaded(wave, wave.vector_memory, out, words, exec);
  atomic_lanes(wave, places, lanes, i.in[2].index, compared, out, num_bytes, opcode.variant);
  if (i.returns) {
    for (u64 rest = exec & ~lanes; rest != 0; rest &= rest - 1) {
      for (int k = 0; k < words; ++k) wave.vector[out + k][std::countr_zero(rest)] = 0;
    }
  }
  wave.issue(wave.vector_memory, out, i.returns ? words : 0, exec);
}

}  // namespace

void add_buffer_memory() {
  for (const Transfer& t : kLoads) {
    special(std::string("buffer_load_") + t.name, "buffer_load", "", IssueClass::vmem_load, load,
            t.num_bytes, t.extend);
  }
  for (const Transfer& t : kStores) {
    special(std::string("buffer_store_") + t.name, "buffer_store", "", IssueClass::vmem_store,
            store, t.num_bytes, t.extend);
  }
  for (const AtomicName& a : kAtomics) {
    if (a.kind == kAddPairBf16) continue;  // gfx942 has it for flat addresses only
    special(std::string("buffer_atomic_") + a.name, "buffer_atomic", "", IssueClass::vmem_atomic,
            atomic, a.num_bytes, a.kind);
  }
}

}  // namespace gfx942
