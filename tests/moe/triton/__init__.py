"""The Triton kernels of the moe room: in Triton's interpreter, and compiled for gfx942."""
