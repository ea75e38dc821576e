// What the stand-in needs to know of a code object's bytes.
#pragma once
#include "standin.h"

// The file's size by its own headers, or 0 where the bytes are no AMDGPU code object.
uint64_t image_bytes(const void* image);

// Whether it is for gfx942.
bool is_for_gfx942(const void* image);

// Whether it has a kernel of this name, by the symbol of its descriptor.
bool has_kernel(const void* image, const char* name);
