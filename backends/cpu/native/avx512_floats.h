// e4m3 weights times many rows in fp32, for AVX-512 where products of bf16 pairs are slow: a stretch of a tile is decoded
// into fp32 in L1 and multiplied by blocks of six rows. Included after avx512_fixed_prepare.h and avx512_rows.h.
//
// x comes in blocks of work.step rows, fp32 [position][row of the block], positions as in Shape::column with 0 for
// padding: what is broadcast for the rows of a block lies side by side.
#pragma once
#include "avx512_rows.h"

namespace qd {
namespace {

constexpr int64_t kFloatRows = 6;
constexpr int64_t kFloatColumns = 64;  // decoded at a time: 16 KB

struct FloatScratch {
  alignas(64) float scale[kTile];
  alignas(64) float weight[kFloatColumns * kTile];  // [position][width]
};

Work plan_floats(const Shape& shape, int64_t m, int32_t dtype, int32_t mode) {
  Work work{};
  work.m = m;
  work.dtype = dtype;
  work.mode = mode;
  work.step = ceil_div(m, ceil_div(m, kFloatRows));
  work.bytes = static_cast<size_t>(ceil_div(m, work.step) * work.step * shape.padded_k()) * 4;
  work.scratch = sizeof(FloatScratch);
  return work;
}

float* float_block(const Shape& shape, const Work& work, int64_t row) {
  return (float*)work.data + row / work.step * work.step * shape.padded_k();
}

void prepare_floats(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Work& work) {
  alignas(64) float values[kSpan];
  for (int64_t i = begin; i < end; ++i)
    for (int64_t g = 0; g < shape.groups; ++g)
      for (int64_t p = 0; p < shape.padded_group(); p += kSpan) {
        const int64_t left = shape.padded_group() - p, count = left < kSpan ? left : kSpan;
        const int64_t columns = (shape.columns ? shape.group : shape.group_columns(g)) - p;
        load_span(shape, x.row(i), g, p, columns, ceil_div(count, 16) * 16, work.dtype, values);
        float* to = float_block(shape, work, i) + (g * shape.padded_group() + p) * work.step + i % work.step;
        for (int64_t c = 0; c < count; ++c) to[c * work.step] = values[c];
      }
}

// out += scale * (weight . x) of `count` positions.
template <int kM, int kN>
void float_block_of(const FloatScratch& from, int64_t count, const float* x, int64_t step, float* out, int64_t ld) {
  __m512 acc[kM][kN];
  QD_UNROLL(6)
  for (int m = 0; m < kM; ++m)
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) acc[m][v] = _mm512_setzero_ps();
  const float* weight = from.weight;
  for (int64_t c = 0; c < count; ++c, weight += kN * 16, x += step) {
    __m512 w[kN];
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) w[v] = _mm512_load_ps(weight + v * 16);
    QD_UNROLL(6)
    for (int m = 0; m < kM; ++m) {
      const __m512 value = _mm512_set1_ps(x[m]);
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) acc[m][v] = _mm512_fmadd_ps(w[v], value, acc[m][v]);
    }
  }
  QD_UNROLL(6)
  for (int m = 0; m < kM; ++m)
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) {
      float* to = out + m * ld + v * 16;
      _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(from.scale + v * 16), acc[m][v], _mm512_load_ps(to)));
    }
}

using FloatBlock = void (*)(const FloatScratch&, int64_t, const float*, int64_t, float*, int64_t);

template <int kN>
FloatBlock float_block_for(int64_t m) {
  static const FloatBlock kAll[kFloatRows] = {float_block_of<1, kN>, float_block_of<2, kN>, float_block_of<3, kN>,
                                              float_block_of<4, kN>, float_block_of<5, kN>, float_block_of<6, kN>};
  return kAll[m - 1];
}

FloatBlock float_block_for(int64_t m, int64_t width) {
  switch (width) {
    case 16: return float_block_for<1>(m);
    case 32: return float_block_for<2>(m);
    case 48: return float_block_for<3>(m);
    default: return float_block_for<4>(m);
  }
}

// `count` dword rows as fp32.
void decode_floats(const Fp8Codes& codes, const uint32_t* code, int64_t width, int64_t count, float* to) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  for (int64_t r = 0; r < count; ++r, code += width, to += 4 * width)
    for (int64_t o = 0; o < width; o += 16) {
      const Halves state = codes.load(load_ahead(code + o));
      QD_UNROLL(2)
      for (int j = 0; j < 2; ++j) {
        const __m512i pair = codes.pair(state, j);
        _mm512_store_si512(to + 2 * j * width + o, _mm512_slli_epi32(pair, 16));
        _mm512_store_si512(to + (2 * j + 1) * width + o, _mm512_and_si512(pair, upper));
      }
    }
}

void tile_floats(const qd_weight& weight, const Shape& shape, const Work& work, const Tile& tile, int64_t begin,
                 int64_t m, float* out, int64_t ld, FloatScratch& scratch) {
  const Fp8Codes codes(shape.format);
  const int64_t width = tile.width, most = kFloatColumns / shape.dword_columns;
  for (int64_t g = 0; g < shape.groups; ++g) {
    for (int64_t o = 0; o < width; o += 16) {
      const char* at = tile.scale + g * tile.scale_step + o * scale_bytes(weight.scale_dtype);
      _mm512_store_ps(scratch.scale + o, load_scales(at, weight.scale_dtype));
    }
    for (int64_t r = 0; r < shape.group_rows; r += most) {
      const int64_t count = shape.group_rows - r < most ? shape.group_rows - r : most;
      const int64_t row = g * shape.group_rows + r, position = row * shape.dword_columns;
      decode_floats(codes, tile.codes + row * width, width, count, scratch.weight);
      for (int64_t i = 0; i < m; i += work.step) {
        const int64_t height = m - i < work.step ? m - i : work.step;
        float_block_for(height, width)(scratch, count * shape.dword_columns,
                                       float_block(shape, work, begin + i) + position * work.step, work.step,
                                       out + i * ld, ld);
      }
    }
  }
}

}  // namespace
}  // namespace qd
