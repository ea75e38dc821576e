#include <string.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "image.h"
#include "state.h"

namespace {

constexpr int kPoison = 0xff;  // NaN in every float format

thread_local int current_device = 0;

HipCode failed(HipCode code) {
  if (code != hipSuccess) state().last_error = code;
  return code;
}

// Count the call; the code that a test asked it to fail with, or hipSuccess.
HipCode entered(const char* function) {
  ++state().calls[function];
  const auto asked = state().fail_next.find(function);
  if (asked == state().fail_next.end()) return hipSuccess;
  const HipCode code = asked->second;
  state().fail_next.erase(asked);
  return failed(code);
}

#define ENTER(function)                                  \
  const std::lock_guard<std::mutex> lock(state().mutex); \
  if (const HipCode code = entered(function); code != hipSuccess) return code

// For what no capture allows: refuse it, and spoil the capture.
#define ENTER_OUTSIDE_CAPTURE(function)              \
  ENTER(function);                                   \
  if (Stream* capturing = state().capturing()) {     \
    capturing->capture = kCaptureInvalidated;        \
    return failed(hipErrorStreamCaptureUnsupported); \
  }                                                  \
  static_cast<void>(0)

HipCode execute(const Node& node) {
  StandinLaunch launch = {};
  StandinExecute run = nullptr;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const Module& module = *node.function->module;
    if (!module.is_loaded) return failed(hipErrorInvalidHandle);
    launch.image = module.image;
    launch.image_bytes = image_bytes(module.image);
    launch.device = module.device;
    run = state().execute;
  }
  launch.kernel = node.function->name.c_str();
  launch.arguments = node.arguments.data();
  launch.num_argument_bytes = node.arguments.size();
  memcpy(launch.grid, node.grid, sizeof launch.grid);
  memcpy(launch.block, node.block, sizeof launch.block);
  launch.dynamic_lds_bytes = node.dynamic_lds_bytes;
  const auto code = static_cast<HipCode>(run ? run(&launch) : hipErrorNotSupported);
  const std::lock_guard<std::mutex> lock(state().mutex);
  return failed(code);
}

// The buffer in HIP_LAUNCH_PARAM_BUFFER_POINTER (1), _SIZE (2), _END (3); false if it is not there.
bool read_extra(void** extra, std::vector<char>* arguments) {
  const char* buffer = nullptr;
  const size_t* num_bytes = nullptr;
  for (; extra && *extra != reinterpret_cast<void*>(3); extra += 2) {
    if (*extra == reinterpret_cast<void*>(1)) buffer = static_cast<const char*>(extra[1]);
    if (*extra == reinterpret_cast<void*>(2)) num_bytes = static_cast<const size_t*>(extra[1]);
  }
  if (!buffer || !num_bytes) return false;
  arguments->assign(buffer, buffer + *num_bytes);
  return true;
}

}  // namespace

STANDIN_EXPORT HipCode hipInit(unsigned) {
  ENTER("hipInit");
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipGetDeviceCount(int* count) {
  ENTER("hipGetDeviceCount");
  *count = state().num_devices;
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipGetDevice(int* device) {
  ENTER("hipGetDevice");
  *device = current_device;
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipSetDevice(int device) {
  ENTER("hipSetDevice");
  if (device < 0 || device >= state().num_devices) return failed(hipErrorInvalidDevice);
  current_device = device;
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipGetLastError() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return std::exchange(state().last_error, hipSuccess);
}

STANDIN_EXPORT HipCode hipPeekAtLastError() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().last_error;
}

STANDIN_EXPORT const char* hipGetErrorName(HipCode code) {
  switch (code) {
#define STANDIN_NAME(name, number, text) \
  case name:                             \
    return #name;
    STANDIN_ERRORS(STANDIN_NAME)
#undef STANDIN_NAME
  }
  return "hipErrorUnknown";
}

STANDIN_EXPORT const char* hipGetErrorString(HipCode code) {
  switch (code) {
#define STANDIN_TEXT(name, number, text) \
  case name:                             \
    return text;
    STANDIN_ERRORS(STANDIN_TEXT)
#undef STANDIN_TEXT
  }
  return "unknown error";
}

STANDIN_EXPORT HipCode hipMalloc(void** address, size_t num_bytes) {
  ENTER_OUTSIDE_CAPTURE("hipMalloc");
  Block block;
  block.memory.reset(new char[num_bytes + 256]);
  block.num_bytes = num_bytes;
  void* start = block.memory.get();
  size_t room = num_bytes + 256;
  *address = std::align(256, num_bytes, start, room);  // as hipMalloc aligns
  memset(*address, kPoison, num_bytes);
  state().blocks.emplace(reinterpret_cast<uintptr_t>(*address), std::move(block));
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipFree(void* address) {
  ENTER_OUTSIDE_CAPTURE("hipFree");
  const auto found = state().blocks.find(reinterpret_cast<uintptr_t>(address));
  if (found == state().blocks.end() || found->second.is_freed) return failed(hipErrorInvalidValue);
  found->second.is_freed = true;
  memset(address, kPoison, found->second.num_bytes);
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipDeviceSynchronize() {
  ENTER_OUTSIDE_CAPTURE("hipDeviceSynchronize");
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipModuleLoadData(void** module, const void* image) {
  ENTER_OUTSIDE_CAPTURE("hipModuleLoadData");
  if (image_bytes(image) == 0) return failed(hipErrorInvalidImage);
  if (!is_for_gfx942(image)) return failed(hipErrorNoBinaryForGpu);
  auto& loaded = state().modules.emplace_back(new Module);
  loaded->image = image;
  loaded->device = current_device;
  *module = loaded.get();
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipModuleUnload(void* module) {
  ENTER_OUTSIDE_CAPTURE("hipModuleUnload");
  for (const auto& loaded : state().modules) {
    if (loaded.get() == module && loaded->is_loaded) {
      loaded->is_loaded = false;
      return hipSuccess;
    }
  }
  return failed(hipErrorInvalidHandle);
}

STANDIN_EXPORT HipCode hipModuleGetFunction(void** function, void* module, const char* name) {
  ENTER("hipModuleGetFunction");
  for (const auto& loaded : state().modules) {
    if (loaded.get() != module || !loaded->is_loaded) continue;
    if (!has_kernel(loaded->image, name)) return failed(hipErrorNotFound);
    auto& found = state().functions.emplace_back(new Function{loaded.get(), name});
    *function = found.get();
    return hipSuccess;
  }
  return failed(hipErrorInvalidHandle);
}

STANDIN_EXPORT HipCode hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                                             unsigned grid_z, unsigned block_x, unsigned block_y,
                                             unsigned block_z, unsigned dynamic_lds_bytes,
                                             void* stream, void** parameters, void** extra) {
  Node node;
  {
    ENTER("hipModuleLaunchKernel");
    State& all = state();
    const auto is_it = [&](const auto& one) { return one.get() == function; };
    if (std::none_of(all.functions.begin(), all.functions.end(), is_it)) {
      return failed(hipErrorInvalidHandle);
    }
    node.function = static_cast<Function*>(function);
    if (!node.function->module->is_loaded || node.function->module->device != current_device) {
      return failed(hipErrorInvalidHandle);
    }
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z) {
      return failed(hipErrorInvalidConfiguration);
    }
    if (parameters) return failed(hipErrorNotSupported);
    if (!read_extra(extra, &node.arguments)) return failed(hipErrorInvalidValue);
    const uint32_t grid[3] = {grid_x, grid_y, grid_z};
    const uint32_t block[3] = {block_x, block_y, block_z};
    memcpy(node.grid, grid, sizeof grid);
    memcpy(node.block, block, sizeof block);
    node.dynamic_lds_bytes = dynamic_lds_bytes;

    Stream* on = all.stream_of(stream);
    if (!on) return failed(hipErrorInvalidHandle);
    if (on->capture == kCaptureInvalidated) return failed(hipErrorStreamCaptureInvalidated);
    if (on->capture == kCaptureActive) {
      on->graph.nodes.push_back(std::move(node));
      return hipSuccess;
    }
    if (all.touches_capture(node.arguments)) {
      all.capturing()->capture = kCaptureInvalidated;
      return failed(hipErrorStreamCaptureIsolation);
    }
  }
  return execute(node);
}

STANDIN_EXPORT HipCode hipStreamCreate(void** stream) {
  ENTER("hipStreamCreate");
  *stream = state().streams.emplace_back(new Stream).get();
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipStreamSynchronize(void* stream) {
  ENTER("hipStreamSynchronize");
  Stream* on = state().stream_of(stream);
  if (!on) return failed(hipErrorInvalidHandle);
  if (on->capture == kCaptureNone) return hipSuccess;
  on->capture = kCaptureInvalidated;
  return failed(hipErrorStreamCaptureUnsupported);
}

STANDIN_EXPORT HipCode hipStreamBeginCapture(void* stream, int) {
  ENTER("hipStreamBeginCapture");
  Stream* on = state().stream_of(stream);
  if (!on) return failed(hipErrorInvalidHandle);
  if (on == &state().null_stream) return failed(hipErrorStreamCaptureUnsupported);
  if (on->capture != kCaptureNone || state().capturing()) return failed(hipErrorIllegalState);
  on->capture = kCaptureActive;
  on->graph = {};
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipStreamIsCapturing(void* stream, int* status) {
  ENTER("hipStreamIsCapturing");
  const Stream* on = state().stream_of(stream);
  if (!on) return failed(hipErrorInvalidHandle);
  *status = on->capture;
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipStreamEndCapture(void* stream, void** graph) {
  ENTER("hipStreamEndCapture");
  Stream* on = state().stream_of(stream);
  *graph = nullptr;
  if (!on) return failed(hipErrorInvalidHandle);
  if (on->capture == kCaptureNone) return failed(hipErrorIllegalState);
  const bool is_spoilt = on->capture == kCaptureInvalidated;
  on->capture = kCaptureNone;
  if (is_spoilt) return failed(hipErrorStreamCaptureInvalidated);
  *graph = state().graphs.emplace_back(new Graph(std::move(on->graph))).get();
  return hipSuccess;
}

STANDIN_EXPORT HipCode hipGraphInstantiate(void** executable, void* graph, void**, char*, size_t) {
  ENTER("hipGraphInstantiate");
  for (const auto& one : state().graphs) {
    if (one.get() != graph) continue;
    *executable = state().graphs.emplace_back(new Graph(*one)).get();
    return hipSuccess;
  }
  return failed(hipErrorInvalidValue);
}

STANDIN_EXPORT HipCode hipGraphLaunch(void* executable, void* stream) {
  const Graph* graph = nullptr;
  {
    ENTER("hipGraphLaunch");
    const Stream* on = state().stream_of(stream);
    if (!on) return failed(hipErrorInvalidHandle);
    if (on->capture != kCaptureNone) return failed(hipErrorStreamCaptureUnsupported);
    for (const auto& one : state().graphs) {
      if (one.get() == executable) graph = one.get();
    }
    if (!graph) return failed(hipErrorInvalidValue);
  }
  for (const Node& node : graph->nodes) {
    if (const HipCode code = execute(node); code != hipSuccess) return code;
  }
  return hipSuccess;
}

#ifndef STANDIN_WITHOUT_MARK  // then it looks like AMD's
STANDIN_EXPORT int mi300aStandinHostMemory(void) { return 1; }
#endif

STANDIN_EXPORT void mi300aStandinReset(void) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  State& all = state();
  all.execute = nullptr;
  all.num_devices = 1;
  all.last_error = hipSuccess;
  all.calls.clear();
  all.fail_next.clear();
  all.modules.clear();
  all.functions.clear();
  all.streams.clear();
  all.graphs.clear();
  all.blocks.clear();
}

STANDIN_EXPORT void mi300aStandinSetExecute(StandinExecute execute) { state().execute = execute; }

STANDIN_EXPORT void mi300aStandinSetDevices(int count) { state().num_devices = count; }

STANDIN_EXPORT void mi300aStandinFailNext(const char* function, int code) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().fail_next[function] = static_cast<HipCode>(code);
}

STANDIN_EXPORT int mi300aStandinCalls(const char* function) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().calls[function];
}

STANDIN_EXPORT int mi300aStandinNumModules(void) {
  return static_cast<int>(state().modules.size());
}

STANDIN_EXPORT int mi300aStandinIsFreed(const void* address) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const Block* block = state().block_of(reinterpret_cast<uintptr_t>(address));
  return block && block->is_freed;
}
