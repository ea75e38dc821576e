#include "image.h"

#include <elf.h>
#include <string.h>

namespace {

constexpr unsigned kMachineAmdgpu = 224;
constexpr unsigned kMachMask = 0xff;
constexpr unsigned kMachGfx942 = 0x4c;

const Elf64_Ehdr* header(const void* image) { return static_cast<const Elf64_Ehdr*>(image); }

const char* at(const void* image, uint64_t offset) {
  return static_cast<const char*>(image) + offset;
}

const Elf64_Shdr* section(const void* image, unsigned index) {
  return reinterpret_cast<const Elf64_Shdr*>(
      at(image, header(image)->e_shoff + uint64_t{index} * sizeof(Elf64_Shdr)));
}

}  // namespace

uint64_t image_bytes(const void* image) {
  if (memcmp(image, ELFMAG, SELFMAG) != 0 || header(image)->e_machine != kMachineAmdgpu) return 0;
  return header(image)->e_shoff + uint64_t{header(image)->e_shnum} * sizeof(Elf64_Shdr);
}

bool is_for_gfx942(const void* image) {
  return (header(image)->e_flags & kMachMask) == kMachGfx942;
}

bool has_kernel(const void* image, const char* name) {
  for (unsigned i = 0; i < header(image)->e_shnum; ++i) {
    const Elf64_Shdr* symbols = section(image, i);
    if (symbols->sh_type != SHT_DYNSYM) continue;
    const char* names = at(image, section(image, symbols->sh_link)->sh_offset);
    for (uint64_t k = 0; k < symbols->sh_size / sizeof(Elf64_Sym); ++k) {
      Elf64_Sym symbol;
      memcpy(&symbol, at(image, symbols->sh_offset + k * sizeof symbol), sizeof symbol);
      const char* found = names + symbol.st_name;
      const size_t length = strlen(name);
      if (strncmp(found, name, length) == 0 && strcmp(found + length, ".kd") == 0) return true;
    }
  }
  return false;
}
