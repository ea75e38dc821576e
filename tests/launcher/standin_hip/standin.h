// A stand-in for the HIP runtime: the functions of libamdhip64 that a launcher needs, on host
// memory.
//
// A launch is handed to a callback, which executes it. Streams run at once and in order. Captures
// and graphs follow HIP's rules: while a stream is being captured, whatever allocates, frees,
// waits, loads or touches the captured memory from outside is refused and spoils the capture. Freed
// memory is poisoned, stays mapped and is never given out again, so that what still uses it is
// seen.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

// HIP's error codes, as far as they are used here (hip/hip_runtime_api.h, hipError_t).
#define STANDIN_ERRORS(X)                                                                      \
  X(hipSuccess, 0, "no error")                                                                 \
  X(hipErrorInvalidValue, 1, "invalid argument")                                               \
  X(hipErrorOutOfMemory, 2, "out of memory")                                                   \
  X(hipErrorInvalidConfiguration, 9, "invalid configuration argument")                         \
  X(hipErrorNoDevice, 100, "no ROCm-capable device is detected")                               \
  X(hipErrorInvalidDevice, 101, "invalid device ordinal")                                      \
  X(hipErrorInvalidImage, 200, "device kernel image is invalid")                               \
  X(hipErrorNoBinaryForGpu, 209, "no kernel image is available for execution on the device")   \
  X(hipErrorInvalidHandle, 400, "invalid resource handle")                                     \
  X(hipErrorIllegalState, 401, "the operation cannot be performed in the present state")       \
  X(hipErrorNotFound, 500, "named symbol not found")                                           \
  X(hipErrorIllegalAddress, 700, "an illegal memory access was encountered")                   \
  X(hipErrorLaunchOutOfResources, 701, "out of resources")                                     \
  X(hipErrorLaunchFailure, 719, "unspecified launch failure")                                  \
  X(hipErrorNotSupported, 801, "operation not supported")                                      \
  X(hipErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
  X(hipErrorStreamCaptureInvalidated, 901,                                                     \
    "operation failed due to a previous error during capture")                                 \
  X(hipErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")

enum HipCode : int {
#define STANDIN_CODE(name, number, text) name = number,
  STANDIN_ERRORS(STANDIN_CODE)
#undef STANDIN_CODE
};

enum HipCaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };

// One launch, as the callback gets it. The pointers are valid during the call only.
struct StandinLaunch {
  const void* image;  // where the launcher put the code object when it loaded it
  uint64_t image_bytes;
  const char* kernel;
  const void* arguments;
  uint64_t num_argument_bytes;
  uint32_t grid[3];   // workgroups
  uint32_t block[3];  // threads of one
  uint32_t dynamic_lds_bytes;
  int32_t device;
};

using StandinExecute = int (*)(const StandinLaunch*);

// What tests set and ask. None of these is a part of HIP.
STANDIN_EXPORT int mi300aStandinHostMemory(void);
STANDIN_EXPORT void mi300aStandinReset(void);  // no modules, streams, graphs, blocks, failures
STANDIN_EXPORT void mi300aStandinSetExecute(StandinExecute execute);
STANDIN_EXPORT void mi300aStandinSetDevices(int count);
STANDIN_EXPORT void mi300aStandinFailNext(const char* function, int code);
STANDIN_EXPORT int mi300aStandinCalls(const char* function);  // since the last reset
STANDIN_EXPORT int mi300aStandinNumModules(void);
STANDIN_EXPORT int mi300aStandinIsFreed(const void* address);
