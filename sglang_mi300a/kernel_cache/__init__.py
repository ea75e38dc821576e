"""Which compiled kernels may be reused: AITER's just-in-time modules, keyed, stored and locked."""
