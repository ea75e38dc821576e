"""The gfx942 kernels of the expert layer: which there are, and what a launch needs. No torch."""
