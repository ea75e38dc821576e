// MXFP4 rows of a checkpoint as the records of layout stream/1, on the host.
//
// sglang_mi300a/stream_layout.py says what a record is, holds the order of records and the places
// of the bits, and does the same in NumPy; here both come as data. A record is made of 16 rows of
// 128 values: 64 scale bytes, row by row, then for lane 16 * g + r the 64-bit words of blocks (0,
// 1) and of blocks (2, 3) of row r, each with its bits moved. A block's word for lane group g is
// its g-th.
//
// Reads and writes are bounded by `order`; nothing is allocated. Any thread may call it.
#include "stream_records.h"

#include <cstring>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are stored little-endian");

namespace {

constexpr int kRows = 16, kBlocks = 4, kGroups = 4;
constexpr int kScaleBytes = kRows * kBlocks;
constexpr int kPairs = kRows * kGroups * kBlocks / 2;  // 64-bit words of a record
constexpr int kOuter = 4;                              // parts of an order before its rows

constexpr int kAtOnce = 16;  // words that stay in registers through all moves

// Two clones: what the loops take is 64-bit shifts, and AVX2 has twice as many at a time.
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
void move_bits(const uint64_t* words, const mi300a_move* moves, int32_t num_moves,
               uint64_t* moved) {
  for (int first = 0; first < kPairs; first += kAtOnce) {
    uint64_t from[kAtOnce], to[kAtOnce] = {};
    for (int i = 0; i < kAtOnce; ++i) from[i] = words[first + i];
    for (int32_t m = 0; m < num_moves; ++m) {
      const uint64_t mask = moves[m].mask;
      const int64_t by = moves[m].left_by;
      if (by >= 0) {
        for (int i = 0; i < kAtOnce; ++i) to[i] |= (from[i] & mask) << by;
      } else {
        for (int i = 0; i < kAtOnce; ++i) to[i] |= (from[i] & mask) >> -by;
      }
    }
    for (int i = 0; i < kAtOnce; ++i) moved[first + i] = to[i];
  }
}

}  // namespace

extern "C" void mi300a_stream_records_1(const mi300a_stream_order* order, const uint8_t* codes,
                                        const uint8_t* scales, const mi300a_move* moves,
                                        int32_t num_moves, uint8_t* records) {
  int64_t at[kOuter];
  uint64_t words[kPairs], moved[kPairs];
  for (at[0] = 0; at[0] < order->counts[0]; ++at[0])
    for (at[1] = 0; at[1] < order->counts[1]; ++at[1])
      for (at[2] = 0; at[2] < order->counts[2]; ++at[2])
        for (at[3] = 0; at[3] < order->counts[3]; ++at[3]) {
          const uint8_t* code = codes;
          const uint8_t* scale = scales;
          for (int part = 0; part < kOuter; ++part) {
            code += at[part] * order->code_strides[part];
            scale += at[part] * order->scale_strides[part];
          }
          for (int row = 0; row < kRows; ++row) {
            uint32_t of_row[kBlocks * kGroups];
            memcpy(of_row, code + row * order->code_strides[kOuter], sizeof of_row);
            memcpy(records + row * kBlocks, scale + row * order->scale_strides[kOuter], kBlocks);
            for (int group = 0; group < kGroups; ++group)
              for (int pair = 0; pair < kBlocks / 2; ++pair) {
                const uint64_t low = of_row[2 * pair * kGroups + group];
                const uint64_t high = of_row[(2 * pair + 1) * kGroups + group];
                words[(group * kRows + row) * (kBlocks / 2) + pair] = low | high << 32;
              }
          }
          move_bits(words, moves, num_moves, moved);
          memcpy(records + kScaleBytes, moved, sizeof moved);
          records += kScaleBytes + sizeof moved;
        }
}
