// Rows of x as the AVX-512 kernels read them. Included after avx512_base.h.
//
// Rows come in blocks of work.step (the last may have fewer). A block is [part][pair][row] of pairs of bf16, in the
// order of Shape::column with the padding 0: what is broadcast for the rows of a block lies side by side. A bf16 x is
// its one part; fp16 is the sum of 2 parts and fp32 of 3, cut off (not rounded) after 8 significant bits each, so that
// the parts' sum is x itself. After the blocks come the sums of x over spans, fp32 [m][spans].
#pragma once
#include "avx512_base.h"

namespace qd {
namespace {

inline int64_t parts_of(int32_t dtype) { return dtype == QD_BF16 ? 1 : dtype == QD_FP16 ? 2 : 3; }

// Dwords of a block.
inline int64_t block_size(const Shape& shape, const Work& work) {
  return parts_of(work.dtype) * shape.padded_k() / 2 * work.step;
}
inline uint32_t* block_at(const Shape& shape, const Work& work, int64_t block) {
  return (uint32_t*)work.data + block * block_size(shape, work);
}
inline float* sums_at(const Shape& shape, const Work& work, int64_t row) {
  return (float*)block_at(shape, work, ceil_div(work.m, work.step)) + row * shape.spans();
}
inline size_t prepared_bytes(const Shape& shape, const Work& work) {
  return static_cast<size_t>(ceil_div(work.m, work.step) * block_size(shape, work) + work.m * shape.spans()) * 4;
}

// 16 positions of a group from p on (those of the mask exist), as fp32.
QD_INLINE __m512 load_positions(const Shape& shape, const char* row, int64_t g, int64_t p, int64_t count,
                                int32_t dtype) {
  if (shape.columns == nullptr) {
    const int64_t from = g * shape.group + p;
    return load_x(row + from * (dtype == QD_FP32 ? 4 : 2), lanes(count), dtype);
  }
  alignas(64) float values[16];
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t column = i < count ? shape.columns[g * shape.group + p + i] : -1;
    values[i] = column < 0 ? 0 : load_float(row, column, dtype);
  }
  return _mm512_load_ps(values);
}

// The first 8 significant bits of 16 values, as bf16; what is left of them stays in `rest`. Nothing is left of what is
// not finite.
QD_INLINE __m256i take_part(__m512& rest) {
  const __m512i v = bits(rest);
  __m512i part = _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000)));
  const __mmask16 nan = _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q);
  part = _mm512_mask_mov_epi32(part, nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i top = _mm512_set1_epi32(0x7f800000);
  const __mmask16 finite = static_cast<__mmask16>(~_mm512_cmpeq_epi32_mask(_mm512_and_si512(v, top), top));
  rest = _mm512_maskz_sub_ps(finite, rest, floats(part));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(part, 16));
}

inline void prepare_row(const Shape& shape, const char* row, int32_t dtype, int64_t step, uint32_t* pairs,
                        float* sums) {
  const int64_t parts = parts_of(dtype), part_step = shape.padded_k() / 2 * step;
  for (int64_t span = 0; span < shape.spans(); ++span) {
    const int64_t g = span / shape.spans_per_group, in_group = (span - g * shape.spans_per_group) * shape.span_rows;
    const int64_t rows = shape.group_rows - in_group < shape.span_rows ? shape.group_rows - in_group : shape.span_rows;
    const int64_t begin = in_group * shape.dword_columns, end = begin + rows * shape.dword_columns;
    const int64_t columns = shape.columns ? shape.group : shape.group_columns(g);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t p = begin; p < end; p += 16) {
      const int64_t count = columns - p < 0 ? 0 : columns - p < 16 ? columns - p : 16;
      const int64_t width = end - p < 16 ? end - p : 16;
      __m512 value = load_positions(shape, row, g, p, count < width ? count : width, dtype);
      sum = _mm512_add_ps(sum, value);
      uint32_t* to = pairs + (g * shape.padded_group() + p) / 2 * step;
      for (int64_t part = 0; part < parts; ++part, to += part_step) {
        const __m256i words = take_part(value);
        if (step == 1) {
          _mm256_mask_storeu_epi32(to, static_cast<__mmask8>(lanes(width / 2)), words);
        } else {
          alignas(32) uint32_t dwords[8];
          _mm256_store_si256((__m256i*)dwords, words);
          for (int64_t i = 0; i < width / 2; ++i) to[i * step] = dwords[i];
        }
      }
    }
    sums[span] = _mm512_reduce_add_ps(sum);
  }
}

inline void prepare(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Work& work) {
  for (int64_t i = begin; i < end; ++i)
    prepare_row(shape, x.row(i), work.dtype, work.step, block_at(shape, work, i / work.step) + i % work.step,
                sums_at(shape, work, i));
}

}  // namespace
}  // namespace qd
