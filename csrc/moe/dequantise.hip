// Read a stream back through the very path of the expert kernels: decode, matrix unit, scaling.
//
//   values[record, k, row] = code's value * scale, in float32, as the expert kernels see it
//
// With records that hold every code it is the probe at start-up: a matrix unit that drops bf16
// subnormals gives 0 for 0.5 in the variant `subnormals`, and the variant `bf8` takes over.
//
//   stream         uint8 [num_records, 1088]: stream_layout; for bf8 as restripe_for_bf8 leaves it
//   stream_bytes   its size
//   values         out: float32 [num_records, 128, 16]
//
// Reference   sglang_mi300a/mxfp4.py, dequantise
// Test        tests/moe/kernels/test_decode.py (every byte at every place, every scale)
// Called by   the self-test at start-up, through the launcher
//
// Work split  a workgroup of one wave a record. Tokens are unit vectors: 16 of the 128 values along
//             K at a time.
// LDS         none.
// Order       one non-zero product a sum.
// Evidence    E1.
#include "weight_formats.h"

namespace moe {

template <class Format>
DEVICE void dequantise(const u8* stream, u32 stream_bytes, float* values) {
  const u32 lane = thread_index();
  const u32 column = lane % kTileRows;
  const u32 group = lane / kTileRows;
  typename Format::Record record;
  Format::load(record, buffer_of(stream, stream_bytes), Format::lane_offsets(lane), 0,
               workgroup_index() * Format::kBytes);
  const u32 one = bits_of(Format::kActivationFactor) >> 16;
  float* out = values + workgroup_index() * (Format::kK * kTileRows);
  for (u32 first = 0; first < Format::kK; first += kTileRows) {
    // Token t is 1 at k = first + t. A lane holds values 8 * group .. + 7 of each block.
    const u32 place = first + column;
    u32x4 tokens[1][Format::kBlocks];
#pragma unroll
    for (u32 block = 0; block < Format::kBlocks; ++block) {
      const u32 inside = place - block * kBlockK - group * 8;
#pragma unroll
      for (u32 word = 0; word < 4; ++word)
        tokens[0][block][word] = inside / 2 == word ? one << (inside % 2 * 16) : 0;
    }
    f32x4 sums[1];
    Format::multiply(record, tokens, 0, true, sums);
#pragma unroll
    for (u32 k = 0; k < 4; ++k) out[(first + group * 4 + k) * kTileRows + column] = sums[0][k];
  }
}

KERNEL(64, 2) moe_dequantise_subnormals(const u8* stream, u32 stream_bytes, float* values) {
  dequantise<Mxfp4<BySubnormals>>(stream, stream_bytes, values);
}
KERNEL(64, 2) moe_dequantise_bf8(const u8* stream, u32 stream_bytes, float* values) {
  dequantise<Mxfp4<ByBf8>>(stream, stream_bytes, values);
}

}  // namespace moe
