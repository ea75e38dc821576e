// The code object of the moe room: all its kernels in one file.
#include "dequantise.hip"
#include "down.hip"
#include "gate_up.hip"
#include "restripe_for_bf8.hip"
#include "sort_pairs.hip"
#include "sum_slots.hip"
