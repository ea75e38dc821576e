// The C interface of stream_records.cpp; sglang_mi300a/stream_records.py is its only caller.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Where the rows of each record lie. Records come in the C order of `counts`; strides are in bytes,
// the last one from row to row of a record.
typedef struct {
  int64_t counts[4];
  int64_t code_strides[5];
  int64_t scale_strides[5];
} mi300a_stream_order;

// Bits of a word that move by the same distance: -63 to 63, negative to the right.
typedef struct {
  uint64_t mask;
  int64_t left_by;
} mi300a_move;

// Write one record after another. The number in the name is raised with every change of this file,
// so that a library of another version is refused by name.
__attribute__((visibility("default"))) void mi300a_stream_records_1(
    const mi300a_stream_order* order, const uint8_t* codes, const uint8_t* scales,
    const mi300a_move* moves, int32_t num_moves, uint8_t* records);

#ifdef __cplusplus
}
#endif
