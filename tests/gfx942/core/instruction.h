// One decoded instruction, as decode.py fills it in. The field lists below are the only copy of
// the layout: binding.py asks for them and builds its record types from the answer.
#pragma once
#include "words.h"

namespace gfx942 {

enum OperandKind : u8 {
  kAbsent,
  kVector,    // index 0..255: v0..v255; 256..511: a0..a255
  kScalar,    // index 0..127, numbered as in the encoding: vcc 106, m0 124, exec 126
  kConstant,  // value holds its bits, already widened to the operand's type
  kCondition  // index 0: vccz, 1: execz, 2: scc
};

// SDWA's part of a register, in the encoding's numbers.
enum Part : u8 { kByte0, kByte1, kByte2, kByte3, kWord0, kWord1, kDword };

// What SDWA does with the rest of the destination register.
enum Unused : u8 { kPad, kSignExtend, kPreserve };

// How an instruction looks at the words of an operand.
enum Shape : u8 {
  kPlain,
  kHalves,   // two 16-bit values; op_sel and op_sel_hi pick which half is which
  kPairs,    // two 32-bit values; likewise
  kMixed,    // v_fma_mix: f32, or a half as f16
  kLaneBits  // a 64-bit mask in scalar registers, a bit a lane
};

#define GFX942_OPERAND_FIELDS(X)                                                          \
  X(u8, kind)                                                                             \
  X(u8, words)  /* 32-bit registers it spans */                                           \
  X(u16, index) /* first register */                                                      \
  X(u8, shape)                                                                            \
  X(u8, select)      /* op_sel in bit 0, op_sel_hi in bit 1; 2 is the default */          \
  X(u8, part)        /* SDWA's part, or the half that op_sel picks of a 16-bit operand */ \
  X(u8, sign_extend) /* the part is signed */                                             \
  X(u8, modified)    /* each word k is taken as (word & keep_k) ^ flip_k: abs and neg */  \
  X(u32, keep0)                                                                           \
  X(u32, keep1)                                                                           \
  X(u32, flip0)                                                                           \
  X(u32, flip1)                                                                           \
  X(u64, value)

// Which bits of a 16-bit destination's register are kept.
enum Merge : u8 { kWhole, kKeepHigh, kKeepLow };

// What VOP3's clamp does to a result: to 0..1 in this type. (Integers have rows of their own.)
enum Clamp : u8 { kNoClamp, kClampF32, kClampF16, kClampF64, kClampF32x2, kClampF16x2 };

#define GFX942_INSTRUCTION_FIELDS(X)                                                \
  X(u16, opcode)                                                                    \
  X(u8, num_in)                                                                     \
  X(u8, clamp)                                                                      \
  X(u8, part)   /* SDWA: where the result goes */                                   \
  X(u8, unused) /* SDWA: what happens to the rest */                                \
  X(u8, sdwa)                                                                       \
  X(u8, dpp)                                                                        \
  X(u8, row_mask)                                                                   \
  X(u8, bank_mask)                                                                  \
  X(u8, bound_zero) /* DPP: lanes without a source read 0 instead of keeping dst */ \
  X(u16, dpp_control)                                                               \
  X(u8, merge)                                                                      \
  X(u8, returns) /* atomics: sc0, the old value comes back */                       \
  X(s32, offset)                                                                    \
  X(s32, offset1) /* second offset of read2 and write2; lgkmcnt of s_waitcnt */     \
  X(u32, target)  /* branches: index of the instruction to go on with */            \
  X(u64, pc)

#define GFX942_FIELD(type, name) type name;
struct Operand {
  GFX942_OPERAND_FIELDS(GFX942_FIELD)
};

constexpr int kMaxInputs = 4;

struct Instruction {
  Operand out;
  Operand out_mask;  // second destination: carry or scale bits
  Operand in[kMaxInputs];
  GFX942_INSTRUCTION_FIELDS(GFX942_FIELD)
};
#undef GFX942_FIELD

// Scalar registers with a name, by their number in the encoding.
enum ScalarIndex : int { kVcc = 106, kM0 = 124, kExec = 126, kNumScalars = 128 };

constexpr int kNumVectors = 512;
constexpr int kFirstAccumulator = 256;

// 64-bit addresses of flat instructions with these upper words mean LDS or scratch.
constexpr u64 kSharedAperture = u64{0x00010000} << 32;
constexpr u64 kPrivateAperture = u64{0x00020000} << 32;

}  // namespace gfx942
