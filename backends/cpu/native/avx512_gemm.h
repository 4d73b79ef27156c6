// Many rows: a stretch of a tile is decoded once into pairs of bf16 in L1 or L2, and multiplied by blocks of rows, for
// AVX-512. Included after avx512_rows.h.
//
// A block of 6 rows by 64 outputs keeps 24 sums in registers; a step takes 4 loads of weights, 6 broadcasts of x and 24
// vdpbf16ps.
#pragma once
#include "avx512_rows.h"

namespace qd {
namespace {

constexpr int64_t kBlockRows = 6;
constexpr int64_t kStretch = 128;  // columns decoded at a time, unless a span is longer
constexpr int64_t kMostSpans = kStretch / 4;  // a group has 4 columns or more, with its padding

// Scratch of a thread.
struct Stretch {
  alignas(64) uint32_t pairs[kSpan / 2 * kTile];  // [pair][width]
  alignas(64) float scale[kMostSpans * kTile];    // [span][width]
  alignas(64) float zero[kMostSpans * kTile];     // less the offset
  alignas(64) uint32_t zero_pairs[kTile];
};

// out += scale * (pairs . x - zero * sum of x) for one span of a block of kM rows.
template <int kM, int kN>
void block(const uint32_t* pairs, int64_t count, const Operand& op, int64_t first_pair, int64_t span,
           const float* scale, const float* zero) {
  __m512 acc[kM][kN];
  QD_UNROLL(6)
  for (int m = 0; m < kM; ++m)
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) acc[m][v] = _mm512_setzero_ps();
  for (int64_t part = 0; part < op.parts; ++part) {
    const uint32_t* x = op.x + part * op.part_step + first_pair * op.pair_step;
    const uint32_t* pair = pairs;
    for (int64_t i = 0; i < count; ++i, pair += kN * 16, x += op.pair_step) {
      __m512i w[kN];
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) w[v] = _mm512_load_si512(pair + v * 16);
      QD_UNROLL(6)
      for (int m = 0; m < kM; ++m) {
        const __m512i value = _mm512_set1_epi32(static_cast<int32_t>(x[m]));
        QD_UNROLL(4)
        for (int v = 0; v < kN; ++v) acc[m][v] = dot_bf16(acc[m][v], w[v], value);
      }
    }
  }
  QD_UNROLL(6)
  for (int m = 0; m < kM; ++m) {
    const __m512 sum = _mm512_set1_ps(zero ? op.sums[m * op.shape.spans() + span] : 0.f);
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) {
      float* to = op.out + m * op.ld + v * 16;
      if (zero) acc[m][v] = _mm512_fnmadd_ps(_mm512_load_ps(zero + v * 16), sum, acc[m][v]);
      _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(scale + v * 16), acc[m][v], _mm512_load_ps(to)));
    }
  }
}

using Block = void (*)(const uint32_t*, int64_t, const Operand&, int64_t, int64_t, const float*, const float*);

template <int kN>
Block block_of(int64_t m) {
  static const Block kBlocks[kBlockRows] = {block<1, kN>, block<2, kN>, block<3, kN>,
                                            block<4, kN>, block<5, kN>, block<6, kN>};
  return kBlocks[m - 1];
}

inline Block block_for(int64_t m, int64_t width) {
  switch (width) {
    case 16: return block_of<1>(m);
    case 32: return block_of<2>(m);
    case 48: return block_of<3>(m);
    default: return block_of<4>(m);
  }
}

// Pairs times fp32 factors, exact where foldable() says so.
QD_INLINE __m512i scaled_pair(__m512i pair, __m512 by) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  const __m512i even = bits(_mm512_mul_ps(floats(_mm512_slli_epi32(pair, 16)), by));
  const __m512i odd = bits(_mm512_mul_ps(floats(_mm512_and_si512(pair, upper)), by));
  return _mm512_ternarylogic_epi32(upper, odd, _mm512_srli_epi32(even, 16), 0xca);
}

// What is folded into the pairs where that is exact: scales (a sum then runs over several groups), or zero points.
enum Fold { kPlain, kScales, kZeros };

// The pairs of dword rows [begin, begin + count) of a tile; kScales: times scale[width]; kZeros: less zero[width].
template <Fold kFold, class Codes>
void decode(const Codes& codes, const Tile& tile, int64_t begin, int64_t count, const float* scale,
            const uint32_t* zero, uint32_t* pairs) {
  const uint32_t* code = tile.codes + begin * tile.width;
  for (int64_t r = 0; r < count; ++r, code += tile.width, pairs += Codes::kPairs * tile.width)
    for (int64_t o = 0; o < tile.width; o += 16) {
      const typename Codes::State state = codes.load(_mm512_loadu_si512(code + o));
      QD_UNROLL(8)
      for (int j = 0; j < Codes::kPairs; ++j) {
        __m512i pair;
        if constexpr (kFold == kZeros) {
          pair = codes.pair_less(state, j, _mm512_load_si512(zero + o));
        } else {
          pair = codes.pair(state, j);
          if (kFold == kScales) pair = scaled_pair(pair, _mm512_load_ps(scale + o));
        }
        _mm512_store_si512(pairs + j * tile.width + o, pair);
      }
    }
}

// Scales and zero points (less the offset) of a group, as fp32.
inline void load_factors(const Operand& op, int64_t g, float* scale, float* zero) {
  const int32_t dtype = op.weight.scale_dtype;
  const __m512i offset = _mm512_set1_epi32(1 << (op.shape.slot_bits - 1));
  for (int64_t o = 0; o < op.tile.width; o += 16) {
    const char* at = op.tile.scale + g * op.tile.scale_step + o * scale_bytes(dtype);
    _mm512_store_ps(scale + o, load_scales(at, dtype));
    if (op.tile.zero)
      _mm512_store_ps(zero + o, _mm512_cvtepi32_ps(_mm512_sub_epi32(load_zeros(op.tile, g, o), offset)));
  }
}

// Zero points of a group as pairs of words.
inline void load_zero_pairs(const Tile& tile, int64_t g, uint32_t* zero) {
  for (int64_t o = 0; o < tile.width; o += 16) {
    const __m512i value = load_zeros(tile, g, o);
    _mm512_store_si512(zero + o, _mm512_or_si512(value, _mm512_slli_epi32(value, 16)));
  }
}

// Scales: where codes times scales are exact in bf16, which has 8 significant bits: up to 4 of a code and 4 of e4m3, or
// powers of two that stay within its range; pays where groups are small. Zero points: where both are nibbles, as their
// difference then has 5 bits.
inline Fold foldable(const qd_weight& weight, const Shape& shape, const Tile& tile, int64_t outputs) {
  if (tile.zero) return weight.zero_bits == 4 ? kZeros : kPlain;
  if (shape.padded_group() > 64) return kPlain;
  if (weight.scale_dtype == QD_E4M3) return shape.format != QD_INT || shape.slot_bits <= 5 ? kScales : kPlain;
  if (weight.scale_dtype != QD_E8M0) return kPlain;
  for (int64_t g = 0; g < shape.groups; ++g)
    for (int64_t o = 0; o < outputs; ++o) {
      const uint8_t code = static_cast<uint8_t>(tile.scale[g * tile.scale_step + o]);
      if (code < 16 || code > 240) return kPlain;
    }
  return kScales;
}

// Blocks of `step` rows of [0, m), all groups.
template <Fold kFold, class Codes>
void many_rows(const Codes& codes, const Operand& all, int64_t m, int64_t step, int64_t block_size, Stretch& scratch) {
  const Shape& shape = all.shape;
  const int64_t width = all.tile.width, row_pairs = Codes::kPairs;
  for (int64_t i = 0; i < m; ++i) memset(all.out + i * all.ld, 0, static_cast<size_t>(width) * 4);
  if (kFold == kScales)
    for (int64_t o = 0; o < width; ++o) scratch.zero[o] = 1;
  const int64_t fit = (kFold == kScales ? kSpan : kStretch) / shape.padded_group();
  const int64_t together = shape.spans_per_group > 1 || fit < 1 ? 1 : fit < kMostSpans ? fit : kMostSpans;
  for (int64_t span = 0; span < shape.spans(); span += together) {
    const int64_t spans = shape.spans() - span < together ? shape.spans() - span : together;
    const int64_t g = span / shape.spans_per_group, in_group = (span - g * shape.spans_per_group) * shape.span_rows;
    const int64_t begin = g * shape.group_rows + in_group, left = shape.group_rows - in_group;
    const int64_t rows = left < shape.span_rows ? left : shape.span_rows;
    for (int64_t i = 0; i < spans; ++i) {
      load_factors(all, g + i, scratch.scale + i * width, scratch.zero + i * width);
      if (kFold == kZeros) load_zero_pairs(all.tile, g + i, scratch.zero_pairs);
      decode<kFold>(codes, all.tile, begin + i * rows, rows, scratch.scale + i * width, scratch.zero_pairs,
                    scratch.pairs + i * rows * row_pairs * width);
    }
    Operand op = all;
    for (int64_t i = 0; i < m; i += step) {
      const int64_t height = m - i < step ? m - i : step;
      const Block run = block_for(height, width);
      if (kFold == kScales)
        run(scratch.pairs, spans * rows * row_pairs, op, begin * row_pairs, span, scratch.zero, nullptr);
      else
        for (int64_t j = 0; j < spans; ++j)
          run(scratch.pairs + j * rows * row_pairs * width, rows * row_pairs, op, (begin + j * rows) * row_pairs,
              span + j, scratch.scale + j * width, op.tile.zero && kFold == kPlain ? scratch.zero + j * width : nullptr);
      op.x += block_size;
      op.sums += step * shape.spans();
      op.out += step * op.ld;
    }
  }
}

}  // namespace
}  // namespace qd
