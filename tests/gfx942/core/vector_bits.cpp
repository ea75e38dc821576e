// Moves, logic, shifts and fields of the vector unit. ISA guide, chapter 12: VOP1, VOP2, VOP3.
#include "registry.h"

namespace gfx942 {
namespace {

void add_moves() {
  vector("v_mov_b32", [](u32 a) { return a; });
  vector("v_mov_b64", [](u64 a) { return a; });
  vector("v_accvgpr_read_b32", [](u32 a) { return a; });
  vector("v_accvgpr_write_b32", [](u32 a) { return a; });
  vector("v_accvgpr_mov_b32", [](u32 a) { return a; });
  vector("v_cndmask_b32", [](f32 a, f32 b, Bit take_b) {  // f32: abs and neg are allowed on it
    return take_b ? std::bit_cast<u32>(b) : std::bit_cast<u32>(a);
  });
}

void add_logic() {
  vector("v_not_b32", [](u32 a) { return ~a; });
  vector("v_and_b32", [](u32 a, u32 b) { return a & b; });
  vector("v_or_b32", [](u32 a, u32 b) { return a | b; });
  vector("v_xor_b32", [](u32 a, u32 b) { return a ^ b; });
  vector("v_xnor_b32", [](u32 a, u32 b) { return ~(a ^ b); });
  vector("v_or3_b32", [](u32 a, u32 b, u32 c) { return a | b | c; });
  vector("v_and_or_b32", [](u32 a, u32 b, u32 c) { return (a & b) | c; });
  vector("v_bfi_b32", [](u32 mask, u32 a, u32 b) { return (mask & a) | (~mask & b); });
}

void add_shifts() {
  vector("v_lshlrev_b32", [](u32 by, u32 a) { return a << (by & 31); });
  vector("v_lshrrev_b32", [](u32 by, u32 a) { return a >> (by & 31); });
  vector("v_ashrrev_i32", [](u32 by, s32 a) { return a >> (by & 31); });
  vector("v_lshlrev_b16", [](u16 by, u16 a) { return static_cast<u16>(a << (by & 15)); });
  vector("v_lshrrev_b16", [](u16 by, u16 a) { return static_cast<u16>(a >> (by & 15)); });
  vector("v_ashrrev_i16", [](u16 by, s16 a) { return static_cast<s16>(a >> (by & 15)); });
  vector("v_lshlrev_b64", [](u32 by, u64 a) { return a << (by & 63); });
  vector("v_lshrrev_b64", [](u32 by, u64 a) { return a >> (by & 63); });
  vector("v_ashrrev_i64", [](u32 by, s64 a) { return a >> (by & 63); });
  vector("v_lshl_or_b32", [](u32 a, u32 by, u32 c) { return a << (by & 31) | c; });
  vector("v_alignbit_b32", [](u32 high, u32 low, u32 by) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> (by & 31));
  });
  vector("v_alignbyte_b32", [](u32 high, u32 low, u32 by) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> 8 * (by & 3));
  });
}

void add_fields() {
  vector("v_bfe_u32", [](u32 a, u32 offset, u32 width) {
    const u32 mask = (u32{1} << (width & 31)) - 1;
    return a >> (offset & 31) & mask;
  });
  // The width 0 gives 0; a field that reaches over the top is filled by the sign.
  vector("v_bfe_i32", [](u32 a, u32 offset, u32 width) {
    const u32 bits = width & 31;
    const u32 shifted = static_cast<u32>(static_cast<s32>(a) >> (offset & 31));
    return bits == 0 ? 0 : static_cast<s32>(shifted << (32 - bits)) >> (32 - bits);
  });
  vector("v_bfm_b32",
         [](u32 width, u32 offset) { return ((u32{1} << (width & 31)) - 1) << (offset & 31); });
  vector("v_bfrev_b32", [](u32 a) {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(a);
  });
  vector("v_bcnt_u32_b32", [](u32 a, u32 b) { return static_cast<u32>(std::popcount(a)) + b; });
  vector("v_ffbh_u32",
         [](u32 a) { return a == 0 ? ~u32{0} : static_cast<u32>(std::countl_zero(a)); });
  vector("v_ffbl_b32",
         [](u32 a) { return a == 0 ? ~u32{0} : static_cast<u32>(std::countr_zero(a)); });
  // The first bit from the top that differs from the sign.
  vector("v_ffbh_i32", [](s32 a) {
    const u32 differing = static_cast<u32>(a ^ (a >> 31));
    return differing == 0 ? ~u32{0} : static_cast<u32>(std::countl_zero(differing));
  });
}

// One byte of v_perm_b32's result: selector 0..7 a byte of the sources, 8..11 the sign of byte 1,
// 3, 5 or 7, 12 zero, above 0xff. Without branches, so that the loop over lanes becomes vector
// code.
inline u32 permuted_byte(u64 bytes, u32 selector) {
  const u32 byte = static_cast<u32>(bytes >> 8 * (selector & 7)) & 0xff;
  const u32 sign = (0 - (static_cast<u32>(bytes >> (16 * (selector & 3) + 15)) & 1)) & 0xff;
  const u32 constant = selector == 12 ? 0 : 0xff;
  return selector < 8 ? byte : selector < 12 ? sign : constant;
}

void add_permute() {
  vector("v_perm_b32", [](u32 high, u32 low, u32 selectors) {
    const u64 bytes = static_cast<u64>(high) << 32 | low;
    return permuted_byte(bytes, selectors & 0xff) |
           permuted_byte(bytes, selectors >> 8 & 0xff) << 8 |
           permuted_byte(bytes, selectors >> 16 & 0xff) << 16 |
           permuted_byte(bytes, selectors >> 24) << 24;
  });
}

}  // namespace

void add_vector_bits() {
  add_moves();
  add_logic();
  add_shifts();
  add_fields();
  add_permute();
}

}  // namespace gfx942
