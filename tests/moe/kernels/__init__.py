"""The gfx942 kernels of the moe room, on the interpreter."""
