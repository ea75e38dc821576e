// All that the stand-in knows. Handles are addresses of these objects, which live until a reset.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "standin.h"

struct Module {
  const void* image = nullptr;  // the caller's memory: HIP does not promise a copy
  int device = 0;
  bool is_loaded = true;
};

struct Function {
  Module* module = nullptr;
  std::string name;
};

// A launch that waits in a graph.
struct Node {
  const Function* function = nullptr;
  uint32_t grid[3] = {};
  uint32_t block[3] = {};
  uint32_t dynamic_lds_bytes = 0;
  std::vector<char> arguments;
};

struct Graph {
  std::vector<Node> nodes;
};

struct Stream {
  HipCaptureStatus capture = kCaptureNone;
  Graph graph;  // what was captured so far
};

struct Block {
  std::unique_ptr<char[]> memory;
  size_t num_bytes = 0;
  bool is_freed = false;
};

struct State {
  std::mutex mutex;  // not held while a kernel executes
  StandinExecute execute = nullptr;
  int num_devices = 1;
  HipCode last_error = hipSuccess;
  std::map<std::string, int> calls;
  std::map<std::string, HipCode> fail_next;
  std::vector<std::unique_ptr<Module>> modules;
  std::vector<std::unique_ptr<Function>> functions;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Graph>> graphs;
  std::map<uintptr_t, Block> blocks;  // by first address
  Stream null_stream;

  // The block that an address lies in, freed or not; null if none.
  Block* block_of(uintptr_t address);

  // A stream by its handle; null for a handle that never was one.
  Stream* stream_of(void* handle);

  // The stream that is being captured without an error so far; null if none.
  Stream* capturing();

  // Whether a launch's arguments point into a block that a capture in progress refers to.
  bool touches_capture(const std::vector<char>& arguments);
};

State& state();
