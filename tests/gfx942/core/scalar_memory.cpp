// Scalar loads. ISA guide, chapter 8 (scalar memory operations).
//
// Operands, as decode.py lays them down: in[0] the base (an address, or a buffer descriptor), in[1]
// the offset register (or none); the immediate offset in `offset`.
#include "memory.h"

namespace gfx942 {
namespace {

u64 offset_of(Wave& wave, const Instruction& i) {
  const u64 in_register = i.in[1].kind == kScalar ? scalar_value(wave, i.in[1]) : 0;
  return in_register + static_cast<u64>(static_cast<s64>(i.offset));
}

void load(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 address = wave.read_scalar64(i.in[0].index) + offset_of(wave, i);
  // The hardware ignores the two lowest bits; no program means it to.
  if (address % 4 != 0) throw Fault{FaultKind::kMisaligned, -1, address, "scalar load"};
  const u32 num_bytes = static_cast<u32>(opcode.num_bytes);
  const u8* bytes = host_bytes(wave, address, num_bytes, false, -1);
  count_segments(wave, &address, 1, num_bytes);
  wave.issue_scalar(i.out.index, opcode.num_bytes / 4);
  std::memcpy(&wave.scalar[i.out.index], bytes, num_bytes);
}

// Words past the descriptor's size read as 0.
void buffer_load(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 word1 = wave.read_scalar(i.in[0].index + 1);
  const u64 base = wave.read_scalar(i.in[0].index) | (word1 & 0xffff) << 32;
  const u64 size = wave.read_scalar(i.in[0].index + 2);
  const u64 offset = offset_of(wave, i);
  if ((base + offset) % 4 != 0)
    throw Fault{FaultKind::kMisaligned, -1, base + offset, "scalar load"};
  u32 words[16] = {};
  const int count = opcode.num_bytes / 4;
  for (int k = 0; k < count; ++k) {
    const u64 at = offset + 4 * static_cast<u64>(k);
    if (at + 4 <= size) std::memcpy(&words[k], host_bytes(wave, base + at, 4, false, -1), 4);
  }
  wave.issue_scalar(i.out.index, count);
  std::memcpy(&wave.scalar[i.out.index], words, static_cast<size_t>(opcode.num_bytes));
}

}  // namespace

void add_scalar_memory() {
  for (int words = 1; words <= 16; words *= 2) {
    const std::string width = words == 1 ? "dword" : "dwordx" + std::to_string(words);
    special("s_load_" + width, "scalar_load", "", IssueClass::smem, load, 4 * words);
    special("s_buffer_load_" + width, "scalar_load", "", IssueClass::smem, buffer_load, 4 * words);
  }
}

}  // namespace gfx942
