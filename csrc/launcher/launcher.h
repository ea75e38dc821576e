// The launcher's C interface: load gfx942 code objects and launch their kernels.
//
// It is built without ROCm: the HIP runtime is opened at run time (hip_runtime.h). Modules and
// kernels are named by small numbers, so a stale one is an error and not a wild pointer. Every
// function returns a Status and, where that is not OK, fills a Failure. All may be called from any
// thread.
//
// A launch allocates nothing, waits for nothing and copies its arguments before it returns, so it
// may be captured into a graph. What its pointers point to is the caller's, and must live as long
// as every graph that captured it.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MI300A_EXPORT __attribute__((visibility("default")))

// Raised with every change of this file; a binding refuses a core of another version.
#define MI300A_ABI_VERSION 1

enum {
  MI300A_OK = 0,
  MI300A_NO_RUNTIME = 1,          // none is mapped and none can be opened; text: what was tried
  MI300A_TWO_RUNTIMES = 2,        // text: both files
  MI300A_INCOMPLETE_RUNTIME = 3,  // text: the file and the function that it lacks
  MI300A_BAD_CALL = 4,            // text: which argument, what was found, what is allowed
  MI300A_HIP_ERROR = 5            // call, hip_code and hip_name; text: HIP's own
};

enum { MI300A_MAX_ARGUMENTS = 64, MI300A_MAX_ARGUMENT_BYTES = 1024, MI300A_NAME_BYTES = 96 };

typedef struct {
  int32_t hip_code;
  uint32_t grid[3];   // workgroups; of launches only
  uint32_t block[3];  // threads of one
  char kernel[MI300A_NAME_BYTES];
  char call[MI300A_NAME_BYTES];  // the HIP function that failed
  char hip_name[MI300A_NAME_BYTES];
  char text[1024];
} mi300a_failure;

typedef struct {
  int32_t host_memory;  // 1: a stand-in that executes on host memory (tests)
  char path[1024];      // the file of the HIP runtime
} mi300a_runtime;

// Where one argument lies, from the code object's metadata; 1, 2, 4 or 8 bytes.
typedef struct {
  uint32_t offset_bytes;
  uint32_t size_bytes;
} mi300a_argument;

MI300A_EXPORT int32_t mi300a_abi_version(void);

// Open the HIP runtime, or find it open; `runtime` says which.
MI300A_EXPORT int32_t mi300a_open(mi300a_runtime* runtime, mi300a_failure* failure);

// Load a code object onto a device; the image is copied. `module` becomes its number.
MI300A_EXPORT int32_t mi300a_load(int32_t device, const void* image, uint64_t image_bytes,
                                  int32_t* module, mi300a_failure* failure);

// Unload a module, with its kernels. Refused once one of them was captured into a graph.
MI300A_EXPORT int32_t mi300a_unload(int32_t module, mi300a_failure* failure);

// Look up a kernel of a module. `kernel` becomes its number.
MI300A_EXPORT int32_t mi300a_kernel(int32_t module, const char* name,
                                    const mi300a_argument* arguments, uint32_t num_arguments,
                                    int32_t* kernel, mi300a_failure* failure);

// Launch a kernel on a stream of its device. `values` holds each argument's bits, zero-extended.
// `captured` becomes 1 if the stream is being captured, else 0.
MI300A_EXPORT int32_t mi300a_launch(int32_t kernel, const uint32_t grid[3], const uint32_t block[3],
                                    uint32_t dynamic_lds_bytes, void* stream,
                                    const uint64_t* values, uint32_t num_values, int32_t* captured,
                                    mi300a_failure* failure);

#ifdef __cplusplus
}
#endif
