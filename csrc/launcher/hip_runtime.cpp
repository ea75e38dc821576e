#include "hip_runtime.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <mutex>

namespace mi300a {
namespace {

constexpr char kStem[] = "libamdhip64";
constexpr const char* kSonames[] = {"libamdhip64.so.7", "libamdhip64.so.6"};
// A stand-in runtime for tests exports this; AMD's never does.
constexpr char kHostMemoryMark[] = "mi300aStandinHostMemory";

struct Mapped {
  int count = 0;
  char paths[2][sizeof(mi300a_runtime::path)] = {};
};

int note_if_hip(dl_phdr_info* info, size_t, void* context) {
  auto* mapped = static_cast<Mapped*>(context);
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* file = slash ? slash + 1 : info->dlpi_name;
  if (strncmp(file, kStem, sizeof kStem - 1) != 0) return 0;
  if (mapped->count < 2) say(mapped->paths[mapped->count], "%s", info->dlpi_name);
  ++mapped->count;
  return 0;
}

void* open_by_soname(mi300a_failure* failure) {
  size_t used = 0;
  for (const char* soname : kSonames) {
    if (void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* reason = dlerror();
    const int added = snprintf(failure->text + used, sizeof failure->text - used, "%s%s",
                               used ? "; " : "", reason ? reason : soname);
    used += added > 0 ? static_cast<size_t>(added) : 0;
    if (used >= sizeof failure->text) break;
  }
  return nullptr;
}

// Fill `runtime` from an open library; false, with `failure` filled, where it lacks a function.
bool bind(void* library, HipRuntime* runtime, mi300a_failure* failure) {
  const char* lacking = nullptr;
#define MI300A_BIND(result, name, parameters)                                       \
  runtime->name = reinterpret_cast<decltype(runtime->name)>(dlsym(library, #name)); \
  if (!runtime->name && !lacking) lacking = #name;
  MI300A_HIP_FUNCTIONS(MI300A_BIND)
#undef MI300A_BIND
  if (lacking) {
    say(failure->text, "%.900s lacks %s", runtime->facts.path, lacking);
    return false;
  }
  runtime->facts.host_memory = dlsym(library, kHostMemoryMark) != nullptr;
  return true;
}

}  // namespace

const HipRuntime* hip_runtime(int32_t* status, mi300a_failure* failure) {
  static std::mutex mutex;
  static HipRuntime runtime;
  static bool is_open = false;
  const std::lock_guard<std::mutex> lock(mutex);

  Mapped mapped;
  dl_iterate_phdr(note_if_hip, &mapped);
  if (mapped.count > 1) {
    *status = MI300A_TWO_RUNTIMES;
    say(failure->text, "%.500s and %.500s", mapped.paths[0], mapped.paths[1]);
    return nullptr;
  }
  if (is_open) return &runtime;

  void* library =
      mapped.count == 1 ? dlopen(mapped.paths[0], RTLD_NOW | RTLD_NOLOAD) : open_by_soname(failure);
  if (!library) {
    *status = MI300A_NO_RUNTIME;
    if (mapped.count == 1) say(failure->text, "%.900s: mapped, not opened", mapped.paths[0]);
    return nullptr;
  }
  link_map* file = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &file) == 0) say(runtime.facts.path, "%s", file->l_name);
  if (!bind(library, &runtime, failure)) {
    *status = MI300A_INCOMPLETE_RUNTIME;
    dlclose(library);
    return nullptr;
  }
  const HipCode code = runtime.hipInit(0);
  if (code != kSuccess) {
    *status = MI300A_HIP_ERROR;
    failure->hip_code = code;
    say(failure->call, "hipInit");
    say(failure->hip_name, "%s", runtime.hipGetErrorName(code));
    say(failure->text, "%s", runtime.hipGetErrorString(code));
    return nullptr;
  }
  is_open = true;
  return &runtime;
}

}  // namespace mi300a
