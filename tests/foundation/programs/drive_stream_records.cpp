// Call the host library's function for the sanitizers: records of 2 x 1 x 2 x 3 pieces from arrays
// that end where the last row does. Prints how many bytes differ from a bit-by-bit construction.
#include <stdio.h>

#include <vector>

#include "../../../csrc/host/stream_records.h"

int main() {
  const mi300a_move moves[] = {{0xffffffffull, 32}, {0xffffffff00000000ull, -32}};
  const int64_t num_records = 12;
  const mi300a_stream_order order = {
      {2, 1, 2, 3}, {6 * 1024, 0, 3 * 1024, 64, 3 * 64}, {6 * 64, 0, 3 * 64, 4, 3 * 4}};
  std::vector<uint8_t> codes(num_records * 1024), scales(num_records * 64);
  std::vector<uint8_t> records(num_records * 1088);
  uint32_t state = 1;
  for (uint8_t& each : codes) each = (state = state * 1664525 + 1013904223) >> 24;
  for (uint8_t& each : scales) each = (state = state * 1664525 + 1013904223) >> 24;
  mi300a_stream_records_1(&order, codes.data(), scales.data(), moves, 2, records.data());

  int64_t num_wrong = 0;
  for (int64_t record = 0; record < num_records; ++record) {
    const int64_t first_row = record / 3 * 16, column = record % 3;
    for (int row = 0; row < 16; ++row) {
      const uint8_t* scale = &scales[((first_row + row) * 3 + column) * 4];
      const uint8_t* code = &codes[((first_row + row) * 3 + column) * 64];
      for (int block = 0; block < 4; ++block) {
        num_wrong += records[record * 1088 + row * 4 + block] != scale[block];
        for (int byte = 0; byte < 16; ++byte) {  // of the block; four belong to a lane group
          const int lane = byte / 4 * 16 + row, other = block ^ 1;  // these moves swap the halves
          const int64_t stored = 64 + lane * 16 + other * 4 + byte % 4;
          num_wrong += records[record * 1088 + stored] != code[block * 16 + byte];
        }
      }
    }
  }
  printf("%lld bytes differ\n", static_cast<long long>(num_wrong));
  return num_wrong != 0;
}
