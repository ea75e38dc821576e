// The sample kernels.
#include "add_table.hip"
#include "mixed_widths.hip"
#include "scale_rows.hip"
