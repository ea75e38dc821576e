// Vector instructions that look across lanes, or swap registers. ISA guide, chapter 12: VOP1, VOP3.
#include "lanes.h"
#include "registry.h"

namespace gfx942 {
namespace {

u32 lane_word(Wave& wave, const Operand& o, int lane) {
  if (o.kind != kVector) return static_cast<u32>(scalar_value(wave, o));
  wave.check_read(o.index, u64{1} << lane);
  return wave.vector[o.index][lane];
}

// The first active lane's value, or lane 0's if none is active.
void read_first_lane(Wave& wave, const Instruction& i, const Opcode&) {
  const int lane = wave.exec() == 0 ? 0 : first_lane(wave.exec());
  wave.write_scalar(i.out.index, lane_word(wave, i.in[0], lane));
}

// Any lane, active or not.
void read_lane(Wave& wave, const Instruction& i, const Opcode&) {
  const int lane = static_cast<int>(scalar_value(wave, i.in[1]) & 63);
  wave.write_scalar(i.out.index, lane_word(wave, i.in[0], lane));
}

void write_lane(Wave& wave, const Instruction& i, const Opcode&) {
  const int lane = static_cast<int>(scalar_value(wave, i.in[1]) & 63);
  const u32 value = static_cast<u32>(scalar_value(wave, i.in[0]));
  wave.check_write(i.out.index, u64{1} << lane);
  wave.vector[i.out.index][lane] = value;
}

// Bits of the mask below this lane, added to source 1; `variant` is the half of the wave.
void count_below(Wave& wave, const Instruction& i, const Opcode& opcode) {
  const u64 exec = wave.exec();
  const Source mask = vector_source(wave, i, 0, exec);
  const Source base = vector_source(wave, i, 1, exec);
  wave.check_write(i.out.index, exec);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    const int in_half = lane - 32 * opcode.variant;
    const u32 below = in_half <= 0 ? 0 : in_half >= 32 ? ~u32{0} : (u32{1} << in_half) - 1;
    wave.vector[i.out.index][lane] =
        base.word[0][lane] + static_cast<u32>(std::popcount(mask.word[0][lane] & below));
  }
}

void swap(Wave& wave, const Instruction& i, const Opcode&) {
  const u64 exec = wave.exec();
  wave.check_read(i.in[0].index, exec);
  wave.check_read(i.out.index, exec);
  u32* a = wave.vector[i.out.index];
  u32* b = wave.vector[i.in[0].index];
  for (int lane = 0; lane < kLanes; ++lane) {
    if (exec >> lane & 1) std::swap(a[lane], b[lane]);
  }
}

void nothing(Wave&, const Instruction&, const Opcode&) {}

}  // namespace

void add_vector_lanes() {
  special("v_readfirstlane_b32", "vector", "u32(u32)", IssueClass::valu, read_first_lane);
  special("v_readlane_b32", "vector", "u32(u32,u32)", IssueClass::valu, read_lane);
  special("v_writelane_b32", "vector", "u32(u32,u32)", IssueClass::valu, write_lane);
  special("v_mbcnt_lo_u32_b32", "vector", "u32(u32,u32)", IssueClass::valu, count_below, 0, 0);
  special("v_mbcnt_hi_u32_b32", "vector", "u32(u32,u32)", IssueClass::valu, count_below, 0, 1);
  special("v_swap_b32", "vector", "u32(u32)", IssueClass::valu, swap);
  special("v_nop", "plain", "", IssueClass::valu, nothing);
}

}  // namespace gfx942
