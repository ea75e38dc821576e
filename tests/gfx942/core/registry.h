// The table of instructions: a name, how its operands look, how it is counted, and what it does.
// Each source file adds its rows; binding.py reads the finished table, so a mnemonic is known to
// the decoder exactly when its semantics stand here.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "wave.h"

namespace gfx942 {

struct Opcode;
using Execute = void (*)(Wave&, const Instruction&, const Opcode&);
using LaneFunction = void (*)(const Source*, const Target&, u32* bits);
using ScalarFunction = u64 (*)(u64, u64, u64, u32& scc);

struct Opcode {
  std::string name;
  std::string form;       // which decoder of decode.py reads its operands
  std::string signature;  // operand types, "f32(f32,f32)"
  IssueClass issue_class;
  Execute execute;
  LaneFunction lanes = nullptr;
  ScalarFunction scalar = nullptr;
  int num_bytes = 0;  // memory: bytes of one element and lane
  int variant = 0;    // memory: an Extend or an AtomicKind; others: as their file says
};

std::vector<Opcode>& opcodes();

// Out of line, so that a thousand rows do not each bring their own copy.
void add_opcode(const std::string& name, const char* form, const std::string& signature,
                IssueClass issue_class, Execute execute, LaneFunction lanes, ScalarFunction scalar,
                int num_bytes, int variant);
std::string signature_text(const char* result, std::initializer_list<const char*> parameters);

void execute_vector(Wave&, const Instruction&, const Opcode&);

// The type names of a function's parameters, and a loop over the lanes that calls it.
template <class F>
struct Lambda : Lambda<decltype(&F::operator())> {};

template <class F, class R, class... A>
struct Lambda<R (F::*)(A...) const> {
  static std::string signature() { return signature_text(Words<R>::kName, {Words<A>::kName...}); }

  template <size_t... I>
  static void run(const Source* in, const Target& out, u32* bits, std::index_sequence<I...>) {
    // No lane reads what another wrote: operands are the same register or disjoint ones.
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) {
      const R result = F{}(Words<A>::load(in[I], lane)...);
      if constexpr (requires { result.bit; }) {
        Words<decltype(result.value)>::store(out, lane, result.value);
        bits[lane] = result.bit;
      } else {
        Words<R>::store(out, lane, result);
      }
    }
  }
  static void lanes(const Source* in, const Target& out, u32* bits) {
    run(in, out, bits, std::index_sequence_for<A...>{});
  }
};

// A vector instruction that does the same to every lane.
template <class F>
void vector(const std::string& name, F) {
  add_opcode(name, "vector", Lambda<F>::signature(), IssueClass::valu, execute_vector,
             &Lambda<F>::lanes, nullptr, 0, 0);
}

// An instruction whose semantics needs the whole wave.
void special(const std::string& name, const char* form, const char* signature, IssueClass issue,
             Execute execute, int num_bytes = 0, int variant = 0);

// One per source file.
void add_vector_integer();
void add_vector_bits();
void add_vector_float();
void add_vector_transcendental();
void add_vector_convert();
void add_vector_compare();
void add_vector_packed();
void add_vector_lanes();
void add_matrix();
void add_scalar();
void add_control();
void add_scalar_memory();
void add_global_memory();
void add_buffer_memory();
void add_lds();

}  // namespace gfx942
