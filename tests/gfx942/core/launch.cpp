// Running a grid: workgroups one after another, the waves of one in a chosen order. And the C
// functions that binding.py calls.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>

#include "registry.h"

namespace gfx942 {

std::vector<Opcode>& opcodes() {
  static std::vector<Opcode> table;
  return table;
}

void add_opcode(const std::string& name, const char* form, const std::string& signature,
                IssueClass issue_class, Execute execute, LaneFunction lanes, ScalarFunction scalar,
                int num_bytes, int variant) {
  opcodes().push_back(
      {name, form, signature, issue_class, execute, lanes, scalar, num_bytes, variant});
}

void special(const std::string& name, const char* form, const char* signature, IssueClass issue,
             Execute execute, int num_bytes, int variant) {
  add_opcode(name, form, signature, issue, execute, nullptr, nullptr, num_bytes, variant);
}

std::string signature_text(const char* result, std::initializer_list<const char*> parameters) {
  std::string text = result;
  text += "(";
  for (const char* one : parameters) {
    if (text.back() != '(') text += ",";
    text += one;
  }
  return text + ")";
}

u32 Launch::index_at(u64 address) const {
  const u64 word = (address - code_base) / 4;
  if (address >= code_base && address % 4 == 0 && word < code_words) {
    const s32 index = reinterpret_cast<const s32*>(index_of_word)[word];
    if (index >= 0) return static_cast<u32>(index);
  }
  throw Fault{FaultKind::kBadBranch, -1, address, "no instruction starts there"};
}

namespace {

// xorshift64*: which wave runs next in random order.
struct Random {
  u64 state;
  explicit Random(u64 seed) : state(seed * 2 + 0x9e3779b97f4a7c15u) {}
  u32 below(u32 bound) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return static_cast<u32>((state * 0x2545f4914f6cdd1du >> 32) * bound >> 32);
  }
};

const std::vector<Opcode>& table() {
  static const bool filled = [] {
    special("unknown", "unknown", "", IssueClass::valu,
            [](Wave&, const Instruction&, const Opcode&) {
              throw Fault{FaultKind::kUnknownInstruction, -1, 0, ""};
            });
    for (auto add : {add_vector_integer, add_vector_bits, add_vector_float,
                     add_vector_transcendental, add_vector_convert, add_vector_compare,
                     add_vector_packed, add_vector_lanes, add_matrix, add_scalar, add_control,
                     add_scalar_memory, add_global_memory, add_buffer_memory, add_lds}) {
      add();
    }
    return true;
  }();
  (void)filled;
  return opcodes();
}

void start_wave(Wave& wave, Launch& launch, Group& group, u32 number, const u32* group_id) {
  wave.launch = &launch;
  wave.group = &group;
  wave.last_allocation = reinterpret_cast<const Allocation*>(launch.allocations);
  wave.number = number;
  wave.next = launch.entry;
  wave.state = WaveState::kRunning;
  wave.scc = 0;
  wave.index_mode = 0;
  wave.vector_memory.clear();
  wave.lds_and_scalar.clear();
  wave.lds_written.clear();
  std::fill_n(&wave.vector[0][0], kNumVectors * kLanes, kPoison);
  std::fill_n(wave.pending, kNumVectors, 0);
  std::fill_n(wave.unwritten, kNumVectors, kAllLanes);
  std::fill_n(wave.scalar, kNumScalars, kPoison);
  std::fill_n(wave.pending_scalar, kNumScalars, false);
  std::fill_n(wave.unwritten_scalar, kNumScalars, true);
  wave.scratch.resize(static_cast<size_t>(launch.scratch_bytes) * kLanes);
  for (size_t k = 0; k < wave.scratch.size(); ++k) wave.scratch[k] = kPoisonBytes[k % 4];

  int next = 0;
  const auto* user = reinterpret_cast<const u32*>(launch.user_scalars);
  for (u32 k = 0; k < launch.num_user_scalars; ++k) wave.write_scalar(next++, user[k]);
  for (int d = 0; d < 3; ++d) {
    if (launch.workgroup_ids >> d & 1) wave.write_scalar(next++, group_id[d]);
  }

  const u32 threads = launch.block_x * launch.block_y * launch.block_z;
  u64 exec = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 thread = number * kLanes + lane;
    if (thread >= threads) break;
    exec |= u64{1} << lane;
    const u32 x = thread % launch.block_x;
    const u32 y = thread / launch.block_x % launch.block_y;
    const u32 z = thread / (launch.block_x * launch.block_y);
    wave.vector[0][lane] = x | y << 10 | z << 20;
  }
  wave.check_write(0, exec);
  wave.write_scalar64(kExec, exec);
}

// One instruction of one wave.
void step(Wave& wave, const std::vector<Opcode>& table) {
  Launch& launch = *wave.launch;
  const u32 index = wave.next;
  if (index >= launch.num_instructions) {
    throw Fault{FaultKind::kBadBranch, -1, wave.now->pc,
                "the program runs past its last instruction"};
  }
  const Instruction& instruction = launch.code()[index];
  wave.now = &instruction;
  wave.next = index + 1;
  ++reinterpret_cast<u64*>(launch.executed)[index];
  if (++launch.total > launch.most_instructions) {
    throw Fault{FaultKind::kInstructionLimit, -1, 0, std::to_string(launch.most_instructions)};
  }
  const Opcode& opcode = table[instruction.opcode];
  opcode.execute(wave, instruction, opcode);
}

// LDS writes not waited for at a barrier may land after it: they count as made in the next epoch.
void pass_barrier(Wave* waves, u32 num_waves, Group& group) {
  for (u32 k = 0; k < num_waves; ++k) {
    for (const u32 word : waves[k].lds_written) group.words[word].written_in = group.epoch + 1;
    if (waves[k].state == WaveState::kAtBarrier) waves[k].state = WaveState::kRunning;
  }
  ++group.epoch;
}

// A launch under way. It outlives a fault, so that gfx942_run can say where it happened.
struct Run {
  Launch& launch;
  u32 num_waves;
  std::unique_ptr<Wave[]> waves;
  Group group;
  Random random;
  Wave* running = nullptr;

  explicit Run(Launch& given)
      : launch(given),
        num_waves((given.block_x * given.block_y * given.block_z + kLanes - 1) / kLanes),
        waves(std::make_unique<Wave[]>(num_waves)),
        random(given.seed) {}

  void grid();
  void workgroup();
};

void Run::workgroup() {
  const std::vector<Opcode>& opcode_table = table();
  std::vector<Wave*> ready;
  while (true) {
    ready.clear();
    bool at_barrier = false;
    for (u32 k = 0; k < num_waves; ++k) {
      Wave& wave = waves[launch.order == kReverse ? num_waves - 1 - k : k];
      if (wave.state == WaveState::kRunning) ready.push_back(&wave);
      at_barrier |= wave.state == WaveState::kAtBarrier;
    }
    if (ready.empty()) {
      if (!at_barrier) return;
      pass_barrier(waves.get(), num_waves, group);
      continue;
    }
    if (launch.order != kRandom) {
      for (Wave* wave : ready) {
        running = wave;
        while (wave->state == WaveState::kRunning) step(*wave, opcode_table);
      }
      continue;
    }
    while (!ready.empty()) {
      const u32 pick = random.below(static_cast<u32>(ready.size()));
      running = ready[pick];
      step(*running, opcode_table);
      if (running->state != WaveState::kRunning) ready.erase(ready.begin() + pick);
    }
  }
}

void Run::grid() {
  const u32 num_groups = launch.grid_x * launch.grid_y * launch.grid_z;
  std::vector<u32> sequence(num_groups);
  for (u32 k = 0; k < num_groups; ++k)
    sequence[k] = launch.order == kReverse ? num_groups - 1 - k : k;
  if (launch.order == kRandom) {
    for (u32 k = num_groups; k > 1; --k) std::swap(sequence[k - 1], sequence[random.below(k)]);
  }
  for (const u32 number : sequence) {
    const u32 id[3] = {number % launch.grid_x, number / launch.grid_x % launch.grid_y,
                       number / (launch.grid_x * launch.grid_y)};
    group = Group{};
    group.number = number;
    group.lds.resize(launch.lds_bytes);
    for (u32 k = 0; k < launch.lds_bytes; ++k) group.lds[k] = kPoisonBytes[k % 4];
    group.words.resize((launch.lds_bytes + 3) / 4);
    for (u32 k = 0; k < num_waves; ++k) start_wave(waves[k], launch, group, k, id);
    workgroup();
  }
}

// A record's fields as "name:type:offset" and its size.
template <class Record>
struct Layout {
  std::string text;
  void add(const char* name, const char* type, size_t offset) {
    text += std::string(name) + ":" + type + ":" + std::to_string(offset) + " ";
  }
  std::string finished() const { return text + std::to_string(sizeof(Record)); }
};

std::string layouts() {
#define GFX942_ADD(type, name) layout.add(#name, #type, offsetof(Record, name));
  std::string text;
  {
    using Record = Operand;
    Layout<Record> layout;
    GFX942_OPERAND_FIELDS(GFX942_ADD)
    text += "operand " + layout.finished() + "\n";
  }
  {
    using Record = Instruction;
    Layout<Record> layout;
    layout.add("out", "operand", offsetof(Record, out));
    layout.add("out_mask", "operand", offsetof(Record, out_mask));
    for (int k = 0; k < kMaxInputs; ++k) {
      layout.add(("in" + std::to_string(k)).c_str(), "operand",
                 offsetof(Record, in) + k * sizeof(Operand));
    }
    GFX942_INSTRUCTION_FIELDS(GFX942_ADD)
    text += "instruction " + layout.finished() + "\n";
  }
  {
    using Record = Launch;
    Layout<Record> layout;
    GFX942_LAUNCH_FIELDS(GFX942_ADD)
    text += "launch " + layout.finished() + "\n";
  }
  {
    using Record = Allocation;
    Layout<Record> layout;
    GFX942_ADD(u64, base)
    GFX942_ADD(u64, num_bytes)
    GFX942_ADD(u64, host) GFX942_ADD(u64, writable) text +=
        "allocation " + layout.finished() + "\n";
  }
  {
    using Record = UninitialisedRead;
    Layout<Record> layout;
    GFX942_ADD(u64, pc)
    GFX942_ADD(s32, register_index)
    GFX942_ADD(u32, workgroup) GFX942_ADD(u32, wave) text +=
        "uninitialised " + layout.finished() + "\n";
  }
#undef GFX942_ADD
#define GFX942_NAME(name) text += " " #name;
  text += "classes";
  GFX942_CLASSES(GFX942_NAME)
  text += "\nfaults";
  GFX942_FAULTS(GFX942_NAME)
#undef GFX942_NAME
  return text + "\n";
}

}  // namespace
}  // namespace gfx942

extern "C" {

// Lines "number name, form, class, signature, bytes", tabs between.
const char* gfx942_opcodes() {
  static const std::string text = [] {
    std::string lines;
    int number = 0;
    for (const auto& one : gfx942::table()) {
      std::string line = std::to_string(number++) + " " + one.name + "\t" + one.form + "\t" +
                         std::to_string(static_cast<int>(one.issue_class)) + "\t" + one.signature +
                         "\t" + std::to_string(one.num_bytes);
      lines += line + "\n";
    }
    return lines;
  }();
  return text.c_str();
}

// The layout of every record that crosses the border, and the names of classes and faults.
const char* gfx942_layouts() {
  static const std::string text = gfx942::layouts();
  return text.c_str();
}

// Run a launch; 0, or 1 with the fault_ fields filled in.
int gfx942_run(gfx942::Launch* launch) {
  gfx942::Run run(*launch);
  try {
    run.grid();
    return 0;
  } catch (const gfx942::Fault& fault) {
    launch->fault_kind = static_cast<gfx942::u32>(fault.kind);
    launch->fault_index = static_cast<gfx942::u64>(run.running->now - launch->code());
    launch->fault_address = fault.address;
    launch->fault_other_pc = fault.other_pc;
    launch->fault_lane = fault.lane;
    launch->fault_wave = run.running->number;
    launch->fault_group = run.group.number;
    auto* text = reinterpret_cast<char*>(launch->fault_text);
    std::snprintf(text, launch->fault_text_bytes, "%s", fault.what.c_str());
    return 1;
  }
}

}  // extern "C"
