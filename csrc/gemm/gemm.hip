// The code object of the gemm room: all its kernels in one file.
#include "skinny.hip"
