// The table of instructions: a name, how its operands look, how it is counted, and what it does.
// Each source file adds its rows; binding.py reads the finished table, so a mnemonic is known to
// the decoder exactly when its semantics stand here.
#pragma once
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
  int num_bytes = 0;   // memory: bytes of one element and lane
  int variant = 0;     // memory: an Extend or an AtomicKind; others: as their file says
};

std::vector<Opcode>& opcodes();
const Opcode& opcode(int number);

void execute_vector(Wave&, const Instruction&, const Opcode&);

// The type names of a function's parameters, and a loop over the lanes that calls it.
template <class T>
struct TypeName {
  static std::string text() { return Words<T>::kName; }
};
template <class T>
struct TypeName<Old<T>> {
  static std::string text() { return std::string("old ") + Words<T>::kName; }
};
template <class T>
struct TypeName<KeepsHigh<T>> {
  static std::string text() { return std::string("keep ") + Words<T>::kName; }
};
template <class T>
struct TypeName<WithBit<T>> {
  static std::string text() { return std::string(Words<T>::kName) + "+bit"; }
};

template <class F>
struct Lambda : Lambda<decltype(&F::operator())> {};

template <class F, class R, class... A>
struct Lambda<R (F::*)(A...) const> {
  static std::string signature() {
    std::string text = TypeName<R>::text() + "(";
    const char* comma = "";
    ((text += comma + TypeName<A>::text(), comma = ","), ...);
    return text + ")";
  }

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
void vector(const char* name, F) {
  opcodes().push_back({name, "vector", Lambda<F>::signature(), IssueClass::valu, execute_vector,
                       &Lambda<F>::lanes});
}

// An instruction whose semantics needs the whole wave.
inline void special(const char* name, const char* form, const char* signature, IssueClass issue,
                    Execute execute, int num_bytes = 0, int variant = 0) {
  opcodes().push_back(
      {name, form, signature, issue, execute, nullptr, nullptr, num_bytes, variant});
}

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
