"""An interpreter of gfx942 machine code, for running kernels in tests without a GPU."""
