#include "state.h"

#include <string.h>

#include <iterator>

namespace {

// Each argument that may be a pointer, as HIP's own check of capture isolation would see it.
std::vector<uintptr_t> words(const std::vector<char>& arguments) {
  std::vector<uintptr_t> found(arguments.size() / sizeof(uintptr_t));
  if (!found.empty()) memcpy(found.data(), arguments.data(), found.size() * sizeof(uintptr_t));
  return found;
}

}  // namespace

State& state() {
  static auto* forever = new State;
  return *forever;
}

Block* State::block_of(uintptr_t address) {
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  auto& [first, block] = *std::prev(after);
  return address - first < block.num_bytes ? &block : nullptr;
}

Stream* State::stream_of(void* handle) {
  if (!handle) return &null_stream;
  for (const auto& stream : streams) {
    if (stream.get() == handle) return stream.get();
  }
  return nullptr;
}

Stream* State::capturing() {
  for (const auto& stream : streams) {
    if (stream->capture == kCaptureActive) return stream.get();
  }
  return nullptr;
}

bool State::touches_capture(const std::vector<char>& arguments) {
  const Stream* stream = capturing();
  if (!stream) return false;
  for (const uintptr_t mine : words(arguments)) {
    const Block* block = block_of(mine);
    if (!block) continue;
    for (const Node& node : stream->graph.nodes) {
      for (const uintptr_t theirs : words(node.arguments)) {
        if (block_of(theirs) == block) return true;
      }
    }
  }
  return false;
}
