// The state of a running wave, its workgroup, and the launch it belongs to; and what reading or
// writing a register checks.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "instruction.h"

namespace gfx942 {

// What registers and LDS hold before anything was written: a quiet NaN as f32, as two bf16 and,
// nearly, as f64; an address that no buffer has.
constexpr u32 kPoison = 0x7fc0dead;
constexpr u8 kPoisonBytes[4] = {0xad, 0xde, 0xc0, 0x7f};

// How instructions are counted. binding.py reads the names.
// clang-format off
#define GFX942_CLASSES(X)                                                        \
  X(valu) X(mfma) X(salu) X(branch) X(waitcnt) X(nop) X(barrier) X(smem)         \
  X(vmem_load) X(vmem_store) X(vmem_atomic) X(lds) X(scratch) X(message)
// clang-format on
enum class IssueClass : u8 {
#define GFX942_CLASS(name) name,
  GFX942_CLASSES(GFX942_CLASS)
#undef GFX942_CLASS
};

// Why a program was stopped. binding.py reads the names and raises the exception of that name.
// clang-format off
#define GFX942_FAULTS(X)                                                         \
  X(UnknownInstruction) X(OutOfBounds) X(ReadOnly) X(Misaligned)                 \
  X(ReadBeforeWait) X(WrittenBeforeWait) X(LdsRace) X(BadBranch) X(InstructionLimit)
// clang-format on
enum class FaultKind : u32 {
  kNone,
#define GFX942_FAULT(name) k##name,
  GFX942_FAULTS(GFX942_FAULT)
#undef GFX942_FAULT
};

// Thrown by an instruction; the launch adds wave and workgroup.
struct Fault {
  FaultKind kind;
  s32 lane = -1;
  u64 address = 0;
  std::string what;
  s64 other_pc = -1;  // of the load not waited for, or of the other access of a race
};

// A range of addresses that programs may touch.
struct Allocation {
  u64 base;
  u64 num_bytes;
  u8* host;
  u64 writable;
};

// A register or LDS word read before it was ever written, once per wave and register.
struct UninitialisedRead {
  u64 pc;
  s32 register_index;  // 0..511 vector, 1000 + n scalar, -1 LDS
  u32 workgroup;
  u32 wave;
};

// A load (or store) that has been issued and not waited for.
struct InFlight {
  u64 pc;
  u64 lanes;
  s16 first;  // vector register it writes, -1 for none
  s16 count;
  s16 first_scalar;
  bool ordered;  // returns in order with the others of its counter
};

using Queue = std::deque<InFlight>;

struct Group;

struct Launch;

enum class WaveState : u8 { kRunning, kAtBarrier, kEnded };

struct Wave {
  alignas(64) u32 vector[kNumVectors][kLanes];
  alignas(64) u32 scratch_words[12][kLanes];  // where operands and results are made up
  alignas(8) u32 scalar[kNumScalars];
  u64 pending[kNumVectors];    // lanes whose load is not waited for
  u64 unwritten[kNumVectors];  // lanes never written
  bool pending_scalar[kNumScalars];
  bool unwritten_scalar[kNumScalars];
  u32 scc;
  u32 index_mode;  // s_set_gpr_idx_on: bits 0 to 2 sources, bit 3 the destination are indexed by m0
  u32 next;        // index of the instruction to run next
  u32 number;
  WaveState state;
  Queue vector_memory;           // what s_waitcnt vmcnt counts
  Queue lds_and_scalar;          // what s_waitcnt lgkmcnt counts
  std::vector<u32> lds_written;  // words of LDS written since the last wait for LDS
  std::vector<u8> scratch;       // lane l's bytes start at l * scratch_bytes
  const Instruction* now;
  const Allocation* last_allocation;
  Group* group;
  Launch* launch;

  // The register that an operand means, when registers are indexed.
  int indexed(int index, int bit) const {
    return index_mode >> bit & 1 ? index + static_cast<int>(scalar[kM0] & 0xff) : index;
  }

  u64 exec() const { return scalar64(kExec); }
  u64 scalar64(int index) const {
    return scalar[index] | static_cast<u64>(scalar[index + 1]) << 32;
  }
  void set_scalar64(int index, u64 value) {
    scalar[index] = static_cast<u32>(value);
    scalar[index + 1] = static_cast<u32>(value >> 32);
  }

  // Check that `lanes` of vector register `index` may be read; note reads of what was never
  // written.
  void check_read(int index, u64 lanes) {
    if (((pending[index] | unwritten[index]) & lanes) != 0) check_read_slowly(index, lanes);
  }
  // Check that `lanes` may be written, and count them as written.
  void check_write(int index, u64 lanes) {
    if ((pending[index] & lanes) != 0) refuse_write(index, lanes);
    unwritten[index] &= ~lanes;
  }
  // The same for a scalar register.
  u32 read_scalar(int index) {
    if (pending_scalar[index] | unwritten_scalar[index]) check_scalar_slowly(index);
    return scalar[index];
  }
  u64 read_scalar64(int index) {
    const u64 low = read_scalar(index);
    return low | static_cast<u64>(read_scalar(index + 1)) << 32;
  }
  void write_scalar(int index, u32 value) {
    if (pending_scalar[index]) refuse_scalar_write(index);
    unwritten_scalar[index] = false;
    scalar[index] = value;
  }
  void write_scalar64(int index, u64 value) {
    write_scalar(index, static_cast<u32>(value));
    write_scalar(index + 1, static_cast<u32>(value >> 32));
  }

  // The load of `count` registers from `first` on has been issued.
  void issue(Queue& queue, int first, int count, u64 lanes);
  // A flat one is counted by both counters and waited for by both.
  void issue_flat(int first, int count, u64 lanes);
  void issue_scalar(int first_scalar, int count);
  // s_waitcnt: at most so many may be outstanding from here on.
  void wait(Queue& queue, u32 at_most);
  // Mark again what is still under way, after something of it was taken off a queue.
  void mark_pending();

  void check_read_slowly(int index, u64 lanes);
  void check_scalar_slowly(int index);
  [[noreturn]] void refuse_write(int index, u64 lanes);
  [[noreturn]] void refuse_scalar_write(int index);
  void note_uninitialised(int register_index);
};

// Who touched a word of LDS last, to find accesses that no barrier separates.
struct LdsWord {
  u64 write_pc = 0;
  u64 read_pc = 0;
  u32 written_in = 0;  // Group::epoch of the last write; 0: never written
  u32 read_in = 0;
  s16 writer = -1;
  s16 reader = -1;
  bool written_by_atomic = false;
  bool read_by_many = false;
};

struct Group {
  std::vector<u8> lds;
  std::vector<LdsWord> words;
  u32 epoch = 2;  // grows at each barrier; 1 stands for "long ago"
  u32 number = 0;
};

enum Order : u32 { kForward, kReverse, kRandom };

// Everything a launch is given and gives back; filled in by machine.py.
#define GFX942_LAUNCH_FIELDS(X)                                                              \
  X(u64, instructions) /* address of Instruction records */                                  \
  X(u64, num_instructions)                                                                   \
  X(u64, index_of_word) /* s32 per 4 bytes of code: index of the instruction there, or -1 */ \
  X(u64, code_base)     /* where the first of those is loaded */                             \
  X(u64, load_base)     /* added to every pc: where the code object is loaded */             \
  X(u64, code_words)                                                                         \
  X(u64, allocations)                                                                        \
  X(u64, num_allocations)                                                                    \
  X(u64, user_scalars) /* u32 values of s0 .. */                                             \
  X(u32, num_user_scalars)                                                                   \
  X(u32, workgroup_ids) /* bit per dimension: which ids follow the user scalars */           \
  X(u32, entry)         /* index of the first instruction */                                 \
  X(u32, lds_bytes)                                                                          \
  X(u32, scratch_bytes) /* per lane */                                                       \
  X(u32, grid_x)        /* workgroups */                                                     \
  X(u32, grid_y)                                                                             \
  X(u32, grid_z)                                                                             \
  X(u32, block_x) /* threads of a workgroup */                                               \
  X(u32, block_y)                                                                            \
  X(u32, block_z)                                                                            \
  X(u32, order)                                                                              \
  X(u64, seed)                                                                               \
  X(u64, most_instructions)                                                                  \
  X(u64, executed)      /* u64 per instruction: wave-instructions */                         \
  X(u64, segments)      /* u64 per instruction: distinct 64-byte segments */                 \
  X(u64, lanes)         /* u64 per instruction: active lanes of memory instructions */       \
  X(u64, total)         /* out: wave-instructions */                                         \
  X(u64, uninitialised) /* out: UninitialisedRead records */                                 \
  X(u32, most_uninitialised)                                                                 \
  X(u32, num_uninitialised) /* out */                                                        \
  X(u32, check_races)                                                                        \
  X(u32, fault_kind)  /* out: 0, or 1 + the place in GFX942_FAULTS */                        \
  X(u64, fault_index) /* out: index of the instruction */                                    \
  X(u64, fault_address)                                                                      \
  X(s64, fault_other_pc)                                                                     \
  X(s32, fault_lane)                                                                         \
  X(u32, fault_wave)                                                                         \
  X(u32, fault_group)                                                                        \
  X(u32, fault_text_bytes)                                                                   \
  X(u64, fault_text) /* out: char buffer of fault_text_bytes */

struct Launch {
#define GFX942_FIELD(type, name) type name;
  GFX942_LAUNCH_FIELDS(GFX942_FIELD)
#undef GFX942_FIELD

  const Instruction* code() const { return reinterpret_cast<const Instruction*>(instructions); }
  u64 index(const Wave& wave) const { return static_cast<u64>(wave.now - code()); }
  // The index of the instruction at an address, or BadBranch.
  u32 index_at(u64 address) const;
};

}  // namespace gfx942
