"""The gemm room's gfx942 kernels: which there are, what a launch of one is, how long it takes."""
