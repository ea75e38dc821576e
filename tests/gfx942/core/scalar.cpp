// The scalar unit. ISA guide, chapter 5 (scalar ALU operations) and chapter 12: SOP1, SOP2, SOPC,
// SOPK.
#include <algorithm>
#include <type_traits>

#include "lanes.h"
#include "registry.h"

namespace gfx942 {
namespace {

template <class T>
T from_bits(u64 bits) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(bits);
  } else {
    return std::bit_cast<T>(static_cast<u32>(bits));
  }
}

template <class T>
u64 to_bits(T value) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<u64>(value);
  } else {
    return std::bit_cast<u32>(value);
  }
}

// A function of scalar values; its first parameter is SCC if it reads or writes it.
template <class F>
struct Scalar : Scalar<decltype(&F::operator())> {};

template <class F, class R, class... A>
struct Scalar<R (F::*)(u32&, A...) const> {
  static std::string signature() { return Scalar<R (F::*)(A...) const>::signature(); }
  static u64 run(u64 a, u64 b, u64 c, u32& scc) {
    const u64 in[3] = {a, b, c};
    return call(in, scc, std::index_sequence_for<A...>{});
  }
  template <size_t... I>
  static u64 call(const u64* in, u32& scc, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<R>) {
      F{}(scc, from_bits<A>(in[I])...);
      return 0;
    } else {
      return to_bits<R>(F{}(scc, from_bits<A>(in[I])...));
    }
  }
};

template <class F, class R, class... A>
struct Scalar<R (F::*)(A...) const> {
  static std::string signature() {
    if constexpr (std::is_void_v<R>) {
      return signature_text("", {Words<A>::kName...});
    } else {
      return signature_text(Words<R>::kName, {Words<A>::kName...});
    }
  }
  static u64 run(u64 a, u64 b, u64 c, u32&) {
    const u64 in[3] = {a, b, c};
    return call(in, std::index_sequence_for<A...>{});
  }
  template <size_t... I>
  static u64 call(const u64* in, std::index_sequence<I...>) {
    return to_bits<R>(F{}(from_bits<A>(in[I])...));
  }
};

void execute_scalar(Wave& wave, const Instruction& i, const Opcode& opcode) {
  u64 in[3] = {0, 0, 0};
  for (int slot = 0; slot < i.num_in; ++slot) in[slot] = scalar_value(wave, i.in[slot]);
  const u64 result = opcode.scalar(in[0], in[1], in[2], wave.scc);
  if (i.out.kind != kScalar) return;
  if (i.out.words == 2) {
    wave.write_scalar64(i.out.index, result);
  } else {
    wave.write_scalar(i.out.index, static_cast<u32>(result));
  }
}

template <class F>
void scalar(const std::string& name, F, const char* form = "scalar") {
  add_opcode(name, form, Scalar<F>::signature(), IssueClass::salu, execute_scalar, nullptr,
             &Scalar<F>::run, 0, 0);
}

void add_moves() {
  scalar("s_mov_b32", [](u32 a) { return a; });
  scalar("s_mov_b64", [](u64 a) { return a; });
  scalar("s_movk_i32", [](u32 k) { return k; });
  scalar("s_cselect_b32", [](u32& scc, u32 a, u32 b) { return scc ? a : b; });
  scalar("s_cselect_b64", [](u32& scc, u64 a, u64 b) { return scc ? a : b; });
  scalar("s_cmov_b32", [](u32& scc, u32 a, u32 old) { return scc ? a : old; }, "scalar_old");
  scalar("s_cmov_b64", [](u32& scc, u64 a, u64 old) { return scc ? a : old; }, "scalar_old");
  scalar("s_cmovk_i32", [](u32& scc, u32 a, u32 old) { return scc ? a : old; }, "scalar_old");
  scalar("s_sext_i32_i8", [](u32 a) { return static_cast<s32>(static_cast<s8>(a)); });
  scalar("s_sext_i32_i16", [](u32 a) { return static_cast<s32>(static_cast<s16>(a)); });
  scalar("s_pack_ll_b32_b16", [](u32 a, u32 b) { return (a & 0xffff) | b << 16; });
  scalar("s_pack_lh_b32_b16", [](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); });
  scalar("s_pack_hh_b32_b16", [](u32 a, u32 b) { return a >> 16 | (b & 0xffff0000); });
}

void add_arithmetic() {
  scalar("s_add_u32", [](u32& scc, u32 a, u32 b) {
    scc = a + b < a;
    return a + b;
  });
  scalar("s_sub_u32", [](u32& scc, u32 a, u32 b) {
    scc = a < b;
    return a - b;
  });
  scalar("s_add_i32", [](u32& scc, s32 a, s32 b) {
    s32 sum;
    scc = __builtin_add_overflow(a, b, &sum);
    return sum;
  });
  scalar("s_sub_i32", [](u32& scc, s32 a, s32 b) {
    s32 difference;
    scc = __builtin_sub_overflow(a, b, &difference);
    return difference;
  });
  scalar("s_addc_u32", [](u32& scc, u32 a, u32 b) {
    const u64 sum = static_cast<u64>(a) + b + scc;
    scc = sum >> 32 != 0;
    return static_cast<u32>(sum);
  });
  scalar("s_subb_u32", [](u32& scc, u32 a, u32 b) {
    const u64 taken = static_cast<u64>(b) + scc;
    scc = a < taken;
    return static_cast<u32>(a - taken);
  });
  scalar(
      "s_addk_i32",
      [](u32& scc, s32 k, s32 old) {
        s32 sum;
        scc = __builtin_add_overflow(old, k, &sum);
        return sum;
      },
      "scalar_old");
  scalar("s_mulk_i32", [](u32 k, u32 old) { return old * k; }, "scalar_old");
  scalar("s_mul_i32", [](u32 a, u32 b) { return a * b; });
  scalar("s_mul_hi_u32",
         [](u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); });
  scalar("s_mul_hi_i32",
         [](s32 a, s32 b) { return static_cast<s32>(static_cast<s64>(a) * b >> 32); });
  scalar("s_min_u32", [](u32& scc, u32 a, u32 b) {
    scc = a < b;
    return std::min(a, b);
  });
  scalar("s_max_u32", [](u32& scc, u32 a, u32 b) {
    scc = a > b;
    return std::max(a, b);
  });
  scalar("s_min_i32", [](u32& scc, s32 a, s32 b) {
    scc = a < b;
    return std::min(a, b);
  });
  scalar("s_max_i32", [](u32& scc, s32 a, s32 b) {
    scc = a > b;
    return std::max(a, b);
  });
  scalar("s_abs_i32", [](u32& scc, s32 a) {
    const u32 magnitude = a < 0 ? 0 - static_cast<u32>(a) : static_cast<u32>(a);
    scc = magnitude != 0;
    return magnitude;
  });
  scalar("s_absdiff_i32", [](u32& scc, s32 a, s32 b) {
    const u32 difference = a > b ? static_cast<u32>(a) - static_cast<u32>(b)
                                 : static_cast<u32>(b) - static_cast<u32>(a);
    scc = difference != 0;
    return difference;
  });
}

// a << kBy, plus b; SCC is the carry out of the sum.
template <int kBy>
void add_shifted_add() {
  scalar("s_lshl" + std::to_string(kBy) + "_add_u32", [](u32& scc, u32 a, u32 b) {
    const u64 sum = (static_cast<u64>(a) << kBy) + b;
    scc = sum >> 32 != 0;
    return static_cast<u32>(sum);
  });
}

// Logic of one width; SCC says whether the result is not zero.
template <class T>
void add_logic(const std::string& width) {
  scalar("s_and_" + width, [](u32& scc, T a, T b) { return scc = (a & b) != 0, a & b; });
  scalar("s_or_" + width, [](u32& scc, T a, T b) { return scc = (a | b) != 0, a | b; });
  scalar("s_xor_" + width, [](u32& scc, T a, T b) { return scc = (a ^ b) != 0, a ^ b; });
  scalar("s_andn2_" + width, [](u32& scc, T a, T b) { return scc = (a & ~b) != 0, a & ~b; });
  scalar("s_orn2_" + width, [](u32& scc, T a, T b) { return scc = (a | ~b) != 0, a | ~b; });
  scalar("s_nand_" + width, [](u32& scc, T a, T b) { return scc = ~(a & b) != 0, ~(a & b); });
  scalar("s_nor_" + width, [](u32& scc, T a, T b) { return scc = ~(a | b) != 0, ~(a | b); });
  scalar("s_xnor_" + width, [](u32& scc, T a, T b) { return scc = ~(a ^ b) != 0, ~(a ^ b); });
  scalar("s_not_" + width, [](u32& scc, T a) { return scc = ~a != 0, ~a; });
}

// Shifts and bit fields of one width.
template <class T>
void add_bits(const std::string& width) {
  using S = std::make_signed_t<T>;
  constexpr u32 kTop = 8 * sizeof(T) - 1;
  const std::string i = "i" + width.substr(1);
  const std::string u = "u" + width.substr(1);
  scalar("s_lshl_" + width, [](u32& scc, T a, u32 by) {
    const T shifted = a << (by & kTop);
    return scc = shifted != 0, shifted;
  });
  scalar("s_lshr_" + width, [](u32& scc, T a, u32 by) {
    const T shifted = a >> (by & kTop);
    return scc = shifted != 0, shifted;
  });
  scalar("s_ashr_" + i, [](u32& scc, S a, u32 by) {
    const S shifted = a >> (by & kTop);
    return scc = shifted != 0, shifted;
  });
  scalar("s_bfm_" + width, [](u32 bits, u32 offset) {
    return static_cast<T>(((T{1} << (bits & kTop)) - 1) << (offset & kTop));
  });
  // The field's offset stands in the low bits of the second operand, its width from bit 16 on.
  scalar("s_bfe_" + u, [](u32& scc, T a, u32 field) {
    const u32 bits = std::min(field >> 16 & 0x7f, kTop + 1);
    const T shifted = a >> (field & kTop);
    const T result = bits > kTop ? shifted : shifted & ((T{1} << bits) - 1);
    return scc = result != 0, result;
  });
  scalar("s_bfe_" + i, [](u32& scc, S a, u32 field) {
    const u32 bits = std::min(field >> 16 & 0x7f, kTop + 1);
    const S shifted = a >> (field & kTop);
    const u32 unused = kTop + 1 - bits;
    const S result = bits == 0 ? 0 : static_cast<S>(static_cast<T>(shifted) << unused) >> unused;
    return scc = result != 0, result;
  });
  scalar("s_brev_" + width, [](T a) {
    T reversed = 0;
    for (u32 k = 0; k <= kTop; ++k) reversed |= (a >> k & 1) << (kTop - k);
    return reversed;
  });
  scalar(
      "s_bitset0_" + width, [](u32 bit, T old) { return old & ~(T{1} << (bit & kTop)); },
      "scalar_old");
  scalar(
      "s_bitset1_" + width, [](u32 bit, T old) { return old | T{1} << (bit & kTop); },
      "scalar_old");
  scalar("s_bitcmp0_" + width, [](u32& scc, T a, u32 bit) { scc = (a >> (bit & kTop) & 1) == 0; });
  scalar("s_bitcmp1_" + width, [](u32& scc, T a, u32 bit) { scc = (a >> (bit & kTop) & 1) == 1; });
  scalar("s_bcnt0_i32_" + width, [](u32& scc, T a) {
    const u32 count = kTop + 1 - static_cast<u32>(std::popcount(a));
    return scc = count != 0, count;
  });
  scalar("s_bcnt1_i32_" + width, [](u32& scc, T a) {
    const u32 count = static_cast<u32>(std::popcount(a));
    return scc = count != 0, count;
  });
  scalar("s_ff1_i32_" + width, [](T a) { return a == 0 ? -1 : std::countr_zero(a); });
  scalar("s_ff0_i32_" + width, [](T a) { return ~a == 0 ? -1 : std::countr_one(a); });
  scalar("s_flbit_i32_" + width, [](T a) { return a == 0 ? -1 : std::countl_zero(a); });
  const std::string of_sign = sizeof(T) == 4 ? "s_flbit_i32" : "s_flbit_i32_i64";
  scalar(of_sign, [](S a) {
    const T differing = static_cast<T>(a ^ (a >> kTop));
    return differing == 0 ? -1 : std::countl_zero(differing);
  });
}

// s_cmp and s_cmpk of one signedness.
template <class T>
void add_compares(const std::string& type) {
  for (const char* prefix : {"s_cmp_", "s_cmpk_"}) {
    const std::string p = prefix;
    scalar(p + "eq_" + type, [](u32& scc, T a, T b) { scc = a == b; });
    scalar(p + "lg_" + type, [](u32& scc, T a, T b) { scc = a != b; });
    scalar(p + "gt_" + type, [](u32& scc, T a, T b) { scc = a > b; });
    scalar(p + "ge_" + type, [](u32& scc, T a, T b) { scc = a >= b; });
    scalar(p + "lt_" + type, [](u32& scc, T a, T b) { scc = a < b; });
    scalar(p + "le_" + type, [](u32& scc, T a, T b) { scc = a <= b; });
  }
}

// out = EXEC; EXEC = f(source, EXEC); SCC = whether any lane is left.
template <u64 (*kCombine)(u64 source, u64 exec)>
void save_exec(Wave& wave, const Instruction& i, const Opcode&) {
  const u64 source = scalar_value(wave, i.in[0]);
  const u64 before = wave.exec();
  const u64 after = kCombine(source, before);
  wave.write_scalar64(i.out.index, before);
  wave.set_scalar64(kExec, after);
  wave.scc = after != 0;
}

u64 and_both(u64 s, u64 exec) { return s & exec; }
u64 or_both(u64 s, u64 exec) { return s | exec; }
u64 xor_both(u64 s, u64 exec) { return s ^ exec; }
u64 and_not_exec(u64 s, u64 exec) { return s & ~exec; }
u64 or_not_exec(u64 s, u64 exec) { return s | ~exec; }
u64 exec_and_not(u64 s, u64 exec) { return exec & ~s; }
u64 nand_both(u64 s, u64 exec) { return ~(s & exec); }
u64 nor_both(u64 s, u64 exec) { return ~(s | exec); }
u64 xnor_both(u64 s, u64 exec) { return ~(s ^ exec); }
u64 exec_or_not(u64 s, u64 exec) { return exec | ~s; }

template <u64 (*kCombine)(u64, u64)>
void add_save_exec(const char* name) {
  special(name, "scalar", "u64(u64)", IssueClass::salu, save_exec<kCombine>);
}

// EXEC = out = f(source, EXEC).
template <u64 (*kCombine)(u64 source, u64 exec)>
void write_exec(Wave& wave, const Instruction& i, const Opcode&) {
  const u64 after = kCombine(scalar_value(wave, i.in[0]), wave.exec());
  wave.write_scalar64(i.out.index, after);
  wave.set_scalar64(kExec, after);
  wave.scc = after != 0;
}

}  // namespace

void add_scalar() {
  add_moves();
  add_arithmetic();
  add_shifted_add<1>();
  add_shifted_add<2>();
  add_shifted_add<3>();
  add_shifted_add<4>();
  add_logic<u32>("b32");
  add_logic<u64>("b64");
  add_bits<u32>("b32");
  add_bits<u64>("b64");
  add_compares<u32>("u32");
  add_compares<s32>("i32");
  scalar("s_cmp_eq_u64", [](u32& scc, u64 a, u64 b) { scc = a == b; });
  scalar("s_cmp_lg_u64", [](u32& scc, u64 a, u64 b) { scc = a != b; });
  add_save_exec<and_both>("s_and_saveexec_b64");
  add_save_exec<or_both>("s_or_saveexec_b64");
  add_save_exec<xor_both>("s_xor_saveexec_b64");
  add_save_exec<and_not_exec>("s_andn2_saveexec_b64");
  add_save_exec<or_not_exec>("s_orn2_saveexec_b64");
  add_save_exec<exec_and_not>("s_andn1_saveexec_b64");
  add_save_exec<exec_or_not>("s_orn1_saveexec_b64");
  special("s_andn1_wrexec_b64", "scalar", "u64(u64)", IssueClass::salu, write_exec<exec_and_not>);
  special("s_andn2_wrexec_b64", "scalar", "u64(u64)", IssueClass::salu, write_exec<and_not_exec>);
  add_save_exec<nand_both>("s_nand_saveexec_b64");
  add_save_exec<nor_both>("s_nor_saveexec_b64");
  add_save_exec<xnor_both>("s_xnor_saveexec_b64");
}

}  // namespace gfx942
