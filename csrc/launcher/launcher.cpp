#include "launcher.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "hip_runtime.h"

namespace mi300a {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxThreads = 1024;            // of one workgroup
constexpr uint64_t kMaxGridThreads = 1ull << 32;  // of one grid dimension, exclusive (HSA: u32)

struct Free {
  void operator()(char* memory) const { free(memory); }
};
using Image = std::unique_ptr<char, Free>;

struct LoadedModule {
  const HipRuntime* hip = nullptr;
  int device = 0;
  Module handle = nullptr;  // null once unloaded
  Image image;              // HIP may read it until unload
  std::atomic<bool> is_captured{false};
};

struct LoadedKernel {
  LoadedModule* module = nullptr;
  Function handle = nullptr;
  char name[MI300A_NAME_BYTES] = {};
  uint32_t num_arguments = 0;
  uint32_t num_bytes = 0;
  mi300a_argument arguments[MI300A_MAX_ARGUMENTS] = {};
};

// Numbers are positions, and are never given twice.
struct Registry {
  std::shared_mutex mutex;
  std::deque<LoadedModule> modules;
  std::deque<LoadedKernel> kernels;
};

Registry& registry() {
  static auto* forever = new Registry;  // the HIP runtime may be gone when destructors run
  return *forever;
}

template <typename Entry>
Entry* entry(std::deque<Entry>& entries, int32_t number) {
  if (number < 0 || static_cast<size_t>(number) >= entries.size()) return nullptr;
  return &entries[static_cast<size_t>(number)];
}

template <typename... Parts>
int32_t bad_call(mi300a_failure* failure, const char* format, Parts... parts) {
  say(failure->text, format, parts...);
  return MI300A_BAD_CALL;
}

int32_t hip_error(const HipRuntime& hip, const char* call, HipCode code, mi300a_failure* failure) {
  failure->hip_code = code;
  say(failure->call, "%s", call);
  say(failure->hip_name, "%s", hip.hipGetErrorName(code));
  say(failure->text, "%s", hip.hipGetErrorString(code));
  hip.hipGetLastError();  // reported here; torch's next check must not report it again
  return MI300A_HIP_ERROR;
}

#define MI300A_CALL(hip, name, ...)                                    \
  do {                                                                 \
    const HipCode code = (hip).name(__VA_ARGS__);                      \
    if (code != kSuccess) return hip_error(hip, #name, code, failure); \
  } while (false)

// The calling thread's device for as long as it lives; set back to what it was after.
class OnDevice {
 public:
  OnDevice(const HipRuntime& hip, int device) : hip_(hip), device_(device) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (is_changed_) hip_.hipSetDevice(before_);
  }

  int32_t enter(mi300a_failure* failure) {
    MI300A_CALL(hip_, hipGetDevice, &before_);
    if (before_ == device_) return MI300A_OK;
    MI300A_CALL(hip_, hipSetDevice, device_);
    is_changed_ = true;
    return MI300A_OK;
  }

 private:
  const HipRuntime& hip_;
  int device_;
  int before_ = 0;
  bool is_changed_ = false;
};

int32_t check_shape(const uint32_t grid[3], const uint32_t block[3], mi300a_failure* failure) {
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  if (block[0] > kMaxThreads || block[1] > kMaxThreads || block[2] > kMaxThreads || threads == 0 ||
      threads > kMaxThreads) {
    return bad_call(failure, "block %u x %u x %u; a workgroup has 1 to %u threads", block[0],
                    block[1], block[2], static_cast<unsigned>(kMaxThreads));
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (grid[axis] == 0 || uint64_t{grid[axis]} * block[axis] >= kMaxGridThreads) {
      return bad_call(failure, "grid %u x %u x %u; each dimension has 1 to 2^32 - 1 threads",
                      grid[0], grid[1], grid[2]);
    }
  }
  return MI300A_OK;
}

int32_t pack(const LoadedKernel& kernel, const uint64_t* values, uint32_t num_values, char* buffer,
             mi300a_failure* failure) {
  if (num_values != kernel.num_arguments) {
    return bad_call(failure, "%u arguments; the kernel has %u", num_values, kernel.num_arguments);
  }
  for (uint32_t i = 0; i < num_values; ++i) {
    const mi300a_argument& argument = kernel.arguments[i];
    if (argument.size_bytes < 8 && values[i] >> (8 * argument.size_bytes) != 0) {
      return bad_call(failure, "argument %u: value 0x%llx; it has %u bytes", i,
                      static_cast<unsigned long long>(values[i]), argument.size_bytes);
    }
    memcpy(buffer + argument.offset_bytes, &values[i], argument.size_bytes);  // little endian
  }
  return MI300A_OK;
}

int32_t lay_out(LoadedKernel* kernel, const mi300a_argument* arguments, uint32_t num_arguments,
                mi300a_failure* failure) {
  if (num_arguments > MI300A_MAX_ARGUMENTS) {
    return bad_call(failure, "%u arguments; at most %d", num_arguments, MI300A_MAX_ARGUMENTS);
  }
  for (uint32_t i = 0; i < num_arguments; ++i) {
    const uint32_t size = arguments[i].size_bytes;
    const uint32_t offset = arguments[i].offset_bytes;
    if (size != 1 && size != 2 && size != 4 && size != 8) {
      return bad_call(failure, "argument %u: %u bytes; 1, 2, 4 or 8", i, size);
    }
    if (offset < kernel->num_bytes || offset > MI300A_MAX_ARGUMENT_BYTES - size) {
      return bad_call(failure, "argument %u: offset %u; after the one before, and at most %d", i,
                      offset, MI300A_MAX_ARGUMENT_BYTES - static_cast<int>(size));
    }
    kernel->num_bytes = offset + size;
    kernel->arguments[i] = arguments[i];
  }
  kernel->num_arguments = num_arguments;
  return MI300A_OK;
}

int32_t load(int32_t device, const void* image, uint64_t image_bytes, int32_t* module,
             mi300a_failure* failure) {
  int32_t status = MI300A_OK;
  const HipRuntime* hip = hip_runtime(&status, failure);
  if (!hip) return status;
  if (device < 0) return bad_call(failure, "device %d; 0 or more", device);
  if (!image || image_bytes == 0) return bad_call(failure, "an empty image");

  const uint64_t padded_bytes = (image_bytes + kPage - 1) / kPage * kPage;
  Image copy(static_cast<char*>(aligned_alloc(kPage, padded_bytes)));
  if (!copy) {
    return bad_call(failure, "no host memory for an image of %llu bytes",
                    static_cast<unsigned long long>(image_bytes));
  }
  memcpy(copy.get(), image, image_bytes);
  memset(copy.get() + image_bytes, 0, padded_bytes - image_bytes);

  OnDevice on_device(*hip, device);
  if ((status = on_device.enter(failure)) != MI300A_OK) return status;
  Module handle = nullptr;
  MI300A_CALL(*hip, hipModuleLoadData, &handle, copy.get());

  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  LoadedModule& loaded = all.modules.emplace_back();
  loaded.hip = hip;
  loaded.device = device;
  loaded.handle = handle;
  loaded.image = std::move(copy);
  *module = static_cast<int32_t>(all.modules.size()) - 1;
  return MI300A_OK;
}

int32_t unload(int32_t number, mi300a_failure* failure) {
  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  LoadedModule* module = entry(all.modules, number);
  if (!module || !module->handle) return bad_call(failure, "module %d; not loaded", number);
  if (module->is_captured) {
    return bad_call(failure, "module %d; a graph captured one of its kernels", number);
  }
  OnDevice on_device(*module->hip, module->device);
  const int32_t status = on_device.enter(failure);
  if (status != MI300A_OK) return status;
  MI300A_CALL(*module->hip, hipModuleUnload, module->handle);
  module->handle = nullptr;
  module->image.reset();
  return MI300A_OK;
}

int32_t look_up(int32_t number, const char* name, const mi300a_argument* arguments,
                uint32_t num_arguments, int32_t* kernel, mi300a_failure* failure) {
  Registry& all = registry();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  LoadedModule* module = entry(all.modules, number);
  if (!module || !module->handle) return bad_call(failure, "module %d; not loaded", number);
  LoadedKernel found;
  found.module = module;
  if (strlen(name) >= sizeof found.name) {
    return bad_call(failure, "a name of %zu bytes; at most %zu", strlen(name),
                    sizeof found.name - 1);
  }
  say(found.name, "%s", name);
  const int32_t status = lay_out(&found, arguments, num_arguments, failure);
  if (status != MI300A_OK) return status;
  MI300A_CALL(*module->hip, hipModuleGetFunction, &found.handle, module->handle, name);
  all.kernels.push_back(found);
  *kernel = static_cast<int32_t>(all.kernels.size()) - 1;
  return MI300A_OK;
}

int32_t launch(int32_t number, const uint32_t grid[3], const uint32_t block[3],
               uint32_t dynamic_lds_bytes, Stream stream, const uint64_t* values,
               uint32_t num_values, int32_t* captured, mi300a_failure* failure) {
  Registry& all = registry();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const LoadedKernel* kernel = entry(all.kernels, number);
  if (!kernel) return bad_call(failure, "kernel %d; not looked up", number);
  say(failure->kernel, "%s", kernel->name);
  LoadedModule& module = *kernel->module;
  if (!module.handle) return bad_call(failure, "kernel %d; its module was unloaded", number);
  const HipRuntime& hip = *module.hip;

  int32_t status = check_shape(grid, block, failure);
  if (status != MI300A_OK) return status;
  alignas(16) char buffer[MI300A_MAX_ARGUMENT_BYTES];
  size_t num_bytes = kernel->num_bytes;
  memset(buffer, 0, num_bytes);  // padding between arguments is the same in every launch
  if ((status = pack(*kernel, values, num_values, buffer, failure)) != MI300A_OK) return status;

  OnDevice on_device(hip, module.device);
  if ((status = on_device.enter(failure)) != MI300A_OK) return status;
  int capture = kCaptureNone;
  MI300A_CALL(hip, hipStreamIsCapturing, stream, &capture);
  // Before the launch: a graph that an error leaves half captured may be replayed all the same.
  if (capture != kCaptureNone) module.is_captured = true;
  void* extra[] = {launch_param_buffer(), buffer, launch_param_size(), &num_bytes,
                   launch_param_end()};
  MI300A_CALL(hip, hipModuleLaunchKernel, kernel->handle, grid[0], grid[1], grid[2], block[0],
              block[1], block[2], dynamic_lds_bytes, stream, nullptr, extra);
  *captured = capture != kCaptureNone;
  return MI300A_OK;
}

}  // namespace
}  // namespace mi300a

extern "C" {

int32_t mi300a_abi_version(void) { return MI300A_ABI_VERSION; }

int32_t mi300a_open(mi300a_runtime* runtime, mi300a_failure* failure) {
  *failure = {};
  int32_t status = MI300A_OK;
  const mi300a::HipRuntime* hip = mi300a::hip_runtime(&status, failure);
  if (hip) *runtime = hip->facts;
  return status;
}

int32_t mi300a_load(int32_t device, const void* image, uint64_t image_bytes, int32_t* module,
                    mi300a_failure* failure) {
  *failure = {};
  return mi300a::load(device, image, image_bytes, module, failure);
}

int32_t mi300a_unload(int32_t module, mi300a_failure* failure) {
  *failure = {};
  return mi300a::unload(module, failure);
}

int32_t mi300a_kernel(int32_t module, const char* name, const mi300a_argument* arguments,
                      uint32_t num_arguments, int32_t* kernel, mi300a_failure* failure) {
  *failure = {};
  mi300a::say(failure->kernel, "%s", name);
  return mi300a::look_up(module, name, arguments, num_arguments, kernel, failure);
}

int32_t mi300a_launch(int32_t kernel, const uint32_t grid[3], const uint32_t block[3],
                      uint32_t dynamic_lds_bytes, void* stream, const uint64_t* values,
                      uint32_t num_values, int32_t* captured, mi300a_failure* failure) {
  // A failure's texts are over a kilobyte; a launch clears only what it would otherwise leave old.
  failure->hip_code = 0;
  failure->kernel[0] = failure->call[0] = failure->hip_name[0] = failure->text[0] = '\0';
  for (int axis = 0; axis < 3; ++axis) {
    failure->grid[axis] = grid[axis];
    failure->block[axis] = block[axis];
  }
  return mi300a::launch(kernel, grid, block, dynamic_lds_bytes, stream, values, num_values,
                        captured, failure);
}

}  // extern "C"
