// Global, flat and scratch instructions. ISA guide, chapter 10 (flat memory instructions).
//
// Operands, as decode.py lays them down: in[0] the vector address (or none), in[1] the scalar
// address (or none), in[2] the data of stores and atomics.
#include "memory.h"

namespace gfx942 {
namespace {

enum Space { kGlobal, kFlat, kScratch };

// Each active lane's address: vector + scalar + immediate. A vector address of one register is an
// unsigned offset to the scalar one.
void addresses_of(Wave& wave, const Instruction& i, u64 lanes, u64* addresses) {
  const Operand& v = i.in[0];
  const u64 base = (i.in[1].kind == kScalar ? scalar_value(wave, i.in[1]) : 0) +
                   static_cast<u64>(static_cast<s64>(i.offset));
  if (v.kind != kVector) {
    for (int lane = 0; lane < kLanes; ++lane) addresses[lane] = base;
    return;
  }
  for (int k = 0; k < v.words; ++k) wave.check_read(v.index + k, lanes);
  const u32* low = wave.vector[v.index];
  const u32* high = v.words == 2 ? wave.vector[v.index + 1] : nullptr;
  for (int lane = 0; lane < kLanes; ++lane) {
    addresses[lane] = base + (low[lane] | (high ? static_cast<u64>(high[lane]) << 32 : 0));
  }
}

u8* scratch_bytes(Wave& wave, u64 address, u32 num_bytes, int lane) {
  const u64 offset = address & 0xffffffff;
  const u64 size = wave.launch->scratch_bytes;
  if (offset >= size || num_bytes > size - offset) {
    throw Fault{FaultKind::kOutOfBounds, lane, offset,
                std::to_string(num_bytes) + " bytes of scratch, of " + std::to_string(size)};
  }
  return wave.scratch.data() + static_cast<u64>(lane) * size + offset;
}

// Where each lane's bytes lie. Counts the segments of what goes to memory.
Places places_of(Wave& wave, const Instruction& i, int space, u64 lanes, u32 num_bytes,
                 LdsUse use) {
  u64 addresses[kLanes];
  addresses_of(wave, i, lanes, addresses);
  Places places{};
  u64 in_memory = 0;
  for (u64 rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const u64 address = addresses[lane];
    const u64 aperture = address & ~u64{0xffffffff};
    if (use == LdsUse::kAtomic && address % num_bytes != 0) {
      throw Fault{FaultKind::kMisaligned, lane, address, "atomic"};
    }
    if (space == kScratch || (space == kFlat && aperture == kPrivateAperture)) {
      places.at[lane] = scratch_bytes(wave, address, num_bytes, lane);
    } else if (space == kFlat && aperture == kSharedAperture) {
      places.at[lane] = lds_bytes(wave, address & 0xffffffff, num_bytes, use, lane);
    } else {
      places.at[lane] = host_bytes(wave, address, num_bytes, use != LdsUse::kRead, lane);
      in_memory |= u64{1} << lane;
    }
  }
  count_segments(wave, addresses, in_memory, num_bytes);
  return places;
}

template <int kSpace>
void issue(Wave& wave, int first, int count, u64 lanes) {
  if (kSpace == kFlat) {
    wave.issue_flat(first, count, lanes);
  } else {
    wave.issue(wave.vector_memory, first, count, lanes);
  }
}

template <int kSpace>
void load(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  const Places places = places_of(wave, i, kSpace, exec, num_bytes, LdsUse::kRead);
  claim_loaded(wave, wave.vector_memory, i.out.index, words, exec);
  load_lanes(wave, places, exec, i.out.index, num_bytes, opcode.variant);
  issue<kSpace>(wave, i.out.index, words, exec);
}

template <int kSpace>
void store(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  for (int k = 0; k < words_of(num_bytes); ++k) wave.check_read(i.in[2].index + k, exec);
  const Places places = places_of(wave, i, kSpace, exec, num_bytes, LdsUse::kWrite);
  store_lanes(wave, places, exec, i.in[2].index, num_bytes, opcode.variant);
  issue<kSpace>(wave, -1, 0, exec);
}

template <int kSpace>
void atomic(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const int words = words_of(num_bytes);
  for (int k = 0; k < i.in[2].words; ++k) wave.check_read(i.in[2].index + k, exec);
  const Places places = places_of(wave, i, kSpace, exec, num_bytes, LdsUse::kAtomic);
  const int out = i.returns ? i.out.index : -1;
  if (i.returns) claim_loaded(wave, wave.vector_memory, out, words, exec);
  const int compared = opcode.variant == kCompareSwap ? i.in[2].index + words : -1;
  atomic_lanes(wave, places, exec, i.in[2].index, compared, out, num_bytes, opcode.variant);
  issue<kSpace>(wave, out, i.returns ? words : 0, exec);
}

template <int kSpace>
void add_space(const std::string& space, IssueClass load_class, IssueClass store_class) {
  for (const Transfer& t : kLoads) {
    special(space + "_load_" + t.name, "memory_load", "", load_class, load<kSpace>, t.num_bytes,
            t.extend);
  }
  for (const Transfer& t : kStores) {
    special(space + "_store_" + t.name, "memory_store", "", store_class, store<kSpace>, t.num_bytes,
            t.extend);
  }
}

template <int kSpace>
void add_atomics(const std::string& space) {
  for (const AtomicName& a : kAtomics) {
    special(space + "_atomic_" + a.name, "memory_atomic", "", IssueClass::vmem_atomic,
            atomic<kSpace>, a.num_bytes, a.kind);
  }
}

}  // namespace

void add_global_memory() {
  add_space<kGlobal>("global", IssueClass::vmem_load, IssueClass::vmem_store);
  add_space<kFlat>("flat", IssueClass::vmem_load, IssueClass::vmem_store);
  add_space<kScratch>("scratch", IssueClass::scratch, IssueClass::scratch);
  add_atomics<kGlobal>("global");
  add_atomics<kFlat>("flat");
}

}  // namespace gfx942
