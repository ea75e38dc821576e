// Branches, waits, barriers and what has no effect here. ISA guide, chapter 4 (program flow
// control, data dependency resolution) and chapter 12: SOPP, SOP1, SOPK.
#include "lanes.h"
#include "registry.h"

namespace gfx942 {
namespace {

enum BranchIf { kAlways, kScc0, kScc1, kVccZero, kVccNotZero, kExecZero, kExecNotZero };

void branch(Wave& wave, const Instruction& i, const Opcode& opcode) {
  bool taken = true;
  switch (opcode.variant) {
    case kScc0:
      taken = wave.scc == 0;
      break;
    case kScc1:
      taken = wave.scc != 0;
      break;
    case kVccZero:
      taken = wave.read_scalar64(kVcc) == 0;
      break;
    case kVccNotZero:
      taken = wave.read_scalar64(kVcc) != 0;
      break;
    case kExecZero:
      taken = wave.exec() == 0;
      break;
    case kExecNotZero:
      taken = wave.exec() != 0;
      break;
  }
  if (taken) wave.next = i.target;
}

// The address of the next instruction.
u64 following_pc(const Wave& wave) {
  return wave.launch->load_base + wave.now->pc + static_cast<u64>(wave.now->offset1);
}

void get_pc(Wave& wave, const Instruction& i, const Opcode&) {
  wave.write_scalar64(i.out.index, following_pc(wave));
}

void set_pc(Wave& wave, const Instruction& i, const Opcode&) {
  wave.next = wave.launch->index_at(scalar_value(wave, i.in[0]));
}

void swap_pc(Wave& wave, const Instruction& i, const Opcode&) {
  const u64 target = scalar_value(wave, i.in[0]);
  wave.write_scalar64(i.out.index, following_pc(wave));
  wave.next = wave.launch->index_at(target);
}

void call(Wave& wave, const Instruction& i, const Opcode&) {
  wave.write_scalar64(i.out.index, following_pc(wave));
  wave.next = i.target;
}

// A count of -1 was not written in the instruction: no wait on it.
void wait_counts(Wave& wave, const Instruction& i, const Opcode&) {
  if (i.offset >= 0) wave.wait(wave.vector_memory, static_cast<u32>(i.offset));
  if (i.offset1 >= 0) wave.wait(wave.lds_and_scalar, static_cast<u32>(i.offset1));
}

void barrier(Wave& wave, const Instruction&, const Opcode&) { wave.state = WaveState::kAtBarrier; }

void end_program(Wave& wave, const Instruction&, const Opcode&) { wave.state = WaveState::kEnded; }

// Vector registers indexed by m0, until switched off. ISA guide, chapter 6.6 (VGPR indexing).
void index_on(Wave& wave, const Instruction& i, const Opcode&) {
  const u32 index = static_cast<u32>(scalar_value(wave, i.in[0])) & 0xff;
  const u32 mode = static_cast<u32>(i.in[1].value);
  wave.index_mode = mode;
  wave.write_scalar(kM0, index | mode << 12);
}

void index_off(Wave& wave, const Instruction&, const Opcode&) { wave.index_mode = 0; }

void index_again(Wave& wave, const Instruction& i, const Opcode&) {
  const u32 index = static_cast<u32>(scalar_value(wave, i.in[0])) & 0xff;
  wave.write_scalar(kM0, (wave.scalar[kM0] & ~0xffu) | index);
}

void nothing(Wave&, const Instruction&, const Opcode&) {}

// Write-backs and invalidations of caches count as vector memory that completes in order.
void cache(Wave& wave, const Instruction&, const Opcode&) {
  wave.issue(wave.vector_memory, -1, 0, 0);
}

// The only hardware registers that read as something fixed here: which die a workgroup runs on.
void get_register(Wave& wave, const Instruction& i, const Opcode&) {
  wave.write_scalar(i.out.index, static_cast<u32>(i.in[0].value));
}

void read_clock(Wave& wave, const Instruction& i, const Opcode&) {
  wave.issue_scalar(i.out.index, 2);
  wave.set_scalar64(i.out.index, wave.launch->total);
}

}  // namespace

void add_control() {
  constexpr auto kBranch = IssueClass::branch;
  special("s_branch", "branch", "", kBranch, branch, 0, kAlways);
  special("s_cbranch_scc0", "branch", "", kBranch, branch, 0, kScc0);
  special("s_cbranch_scc1", "branch", "", kBranch, branch, 0, kScc1);
  special("s_cbranch_vccz", "branch", "", kBranch, branch, 0, kVccZero);
  special("s_cbranch_vccnz", "branch", "", kBranch, branch, 0, kVccNotZero);
  special("s_cbranch_execz", "branch", "", kBranch, branch, 0, kExecZero);
  special("s_cbranch_execnz", "branch", "", kBranch, branch, 0, kExecNotZero);
  special("s_getpc_b64", "next_pc", "u64()", IssueClass::salu, get_pc);
  special("s_setpc_b64", "next_pc", "(u64)", kBranch, set_pc);
  special("s_swappc_b64", "next_pc", "u64(u64)", kBranch, swap_pc);
  special("s_call_b64", "call", "u64()", kBranch, call);
  special("s_endpgm", "plain", "", kBranch, end_program);

  special("s_waitcnt", "waitcnt", "", IssueClass::waitcnt, wait_counts);
  special("s_barrier", "plain", "", IssueClass::barrier, barrier);
  special("s_set_gpr_idx_on", "index_mode", "(u32)", IssueClass::salu, index_on);
  special("s_set_gpr_idx_off", "plain", "", IssueClass::salu, index_off);
  special("s_set_gpr_idx_idx", "scalar", "(u32)", IssueClass::salu, index_again);
  special("s_nop", "ignored", "", IssueClass::nop, nothing);
  for (const char* name : {"s_sleep", "s_setprio", "s_icache_inv", "s_dcache_inv", "s_dcache_wb",
                           "s_dcache_inv_vol", "s_dcache_wb_vol"}) {
    special(name, "ignored", "", IssueClass::message, nothing);
  }
  for (const char* name : {"buffer_wbl2", "buffer_inv"}) {
    special(name, "ignored", "", IssueClass::message, cache);
  }
  special("s_getreg_b32", "hardware_register", "u32()", IssueClass::salu, get_register);
  special("s_memtime", "scalar", "u64()", IssueClass::smem, read_clock);
  special("s_memrealtime", "scalar", "u64()", IssueClass::smem, read_clock);
}

}  // namespace gfx942
