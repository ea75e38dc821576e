// The part of HIP's C interface that the launcher calls, opened at run time.
#pragma once
#include <stddef.h>

#include "launcher.h"

namespace mi300a {

using Module = void*;
using Function = void*;
using Stream = void*;
using HipCode = int;

constexpr HipCode kSuccess = 0;
constexpr int kCaptureNone = 0;  // hipStreamCaptureStatusNone

// Markers in the `extra` list of hipModuleLaunchKernel: one buffer holds all arguments.
inline void* launch_param_buffer() { return reinterpret_cast<void*>(1); }
inline void* launch_param_size() { return reinterpret_cast<void*>(2); }
inline void* launch_param_end() { return reinterpret_cast<void*>(3); }

#define MI300A_HIP_FUNCTIONS(X)                                                              \
  X(HipCode, hipInit, (unsigned))                                                            \
  X(HipCode, hipGetDevice, (int*))                                                           \
  X(HipCode, hipSetDevice, (int))                                                            \
  X(HipCode, hipGetLastError, ())                                                            \
  X(const char*, hipGetErrorName, (HipCode))                                                 \
  X(const char*, hipGetErrorString, (HipCode))                                               \
  X(HipCode, hipModuleLoadData, (Module*, const void*))                                      \
  X(HipCode, hipModuleUnload, (Module))                                                      \
  X(HipCode, hipModuleGetFunction, (Function*, Module, const char*))                         \
  X(HipCode, hipStreamIsCapturing, (Stream, int*))                                           \
  X(HipCode, hipModuleLaunchKernel,                                                          \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**, void**))

struct HipRuntime {
#define MI300A_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  MI300A_HIP_FUNCTIONS(MI300A_POINTER)
#undef MI300A_POINTER
  mi300a_runtime facts = {};
};

// Return the process's one HIP runtime: the one that is mapped already (torch's), else
// libamdhip64.so.7, else .6. Null, with `status` and `failure` filled, where there is none.
// A second one that was mapped since is found too, and refused.
const HipRuntime* hip_runtime(int32_t* status, mi300a_failure* failure);

// Write a message into one of a Failure's texts, cut to its size.
template <size_t kSize, typename... Parts>
void say(char (&text)[kSize], const char* format, Parts... parts) {
  __builtin_snprintf(text, kSize, format, parts...);
}

}  // namespace mi300a
