// One to four rows: codes go from memory through a register into the sums, for AVX-512. Included after avx512_codes.h.
//
// A dword row of a tile (256 bytes) with 4-bit codes takes 12 shifts, 16 vpermw and 16 vdpbf16ps: about 24 cycles where a
// core does one vdpbf16ps a cycle (AMD's, by instruction tables), 40 where it takes two.
#pragma once
#include "avx512_codes.h"

namespace qd {
namespace {

constexpr int64_t kFewRows = 4;

// What the kernels of a tile have in common: the prepared rows, and where sums go.
struct Operand {
  const qd_weight& weight;
  const Shape& shape;
  const Tile& tile;
  const uint32_t* x;    // pairs of bf16: the first row's pair 0 of part 0
  int64_t pair_step;    // dwords from a pair to the next; the next row's is one dword further
  int64_t part_step;    // dwords from a part to the next
  int64_t parts;        // of bf16 that make up a value of x
  const float* sums;    // of x over a span: [rows][spans]
  float* out;
  int64_t ld;
};

// Scales of any dtype.
struct ScalesAny {
  int32_t dtype;
  template <int kN>
  QD_INLINE void load(const char* at, __m512 (&to)[kN]) const {
    for (int v = 0; v < kN; ++v) to[v] = load_scales(at + v * 16 * scale_bytes(dtype), dtype);
  }
};

// The 64 scales of e4m3 of a full tile: one look-up for all of them rather than four conversions, since with groups of
// 16 a scale comes every other dword row.
struct Scales64 {
  ByteTables tables{kE4m3Table};
  __m512i order;  // of dwords; unpacking within 128-bit lanes undoes it

  Scales64() : order(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)) {}
  QD_INLINE void load(const char* at, __m512 (&to)[4]) const {
    const __m512i codes = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(at));
    const Halves found = tables.look_up(codes);
    const __m512i high = with_sign(found.high, codes), none = _mm512_setzero_si512();
    const __m512i first = _mm512_unpacklo_epi8(found.low, high), second = _mm512_unpackhi_epi8(found.low, high);
    to[0] = floats(_mm512_unpacklo_epi16(none, first));
    to[1] = floats(_mm512_unpackhi_epi16(none, first));
    to[2] = floats(_mm512_unpacklo_epi16(none, second));
    to[3] = floats(_mm512_unpackhi_epi16(none, second));
  }
};

// The dword rows of a span, `count` from `code` on, times kM rows of x.
template <class Codes, int kM, int kN>
QD_INLINE void add_rows(const Codes& codes, const uint32_t* code, int64_t width, const uint32_t* x, int64_t pair_step,
                        int64_t count, __m512 (&acc)[kM][kN]) {
  constexpr int kPairs = Codes::kPairs;
  for (int64_t r = 0; r < count; ++r, code += width, x += kPairs * pair_step) {
    typename Codes::State state[kN];
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) state[v] = codes.load(load_ahead(code + v * 16));
    QD_UNROLL(8)
    for (int j = 0; j < kPairs; ++j) {
      __m512i pair[kN];
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) pair[v] = codes.pair(state[v], j);
      QD_UNROLL(4)
      for (int m = 0; m < kM; ++m) {
        const __m512i value = _mm512_set1_epi32(static_cast<int32_t>(x[j * pair_step + m]));
        QD_UNROLL(4)
        for (int v = 0; v < kN; ++v) acc[m][v] = dot_bf16(acc[m][v], pair[v], value);
      }
    }
  }
}

// kM rows times the kN * 16 outputs from `first` on, over all groups; `unit` is left to the caller.
template <int kM, int kN, class Codes, class Scales>
void few_rows(const Codes& codes, const Scales& scales, const Operand& op, int64_t first) {
  const Shape& shape = op.shape;
  const Tile& tile = op.tile;
  const int64_t x_row = Codes::kPairs * op.pair_step, bytes = scale_bytes(op.weight.scale_dtype);
  const __m512i offset = _mm512_set1_epi32(1 << (shape.slot_bits - 1));
  // A single row's result stays in registers, those of several in memory.
  __m512 y[kN];
  for (int v = 0; v < kN; ++v) y[v] = _mm512_setzero_ps();
  for (int m = 0; kM > 1 && m < kM; ++m)
    for (int v = 0; v < kN; ++v) _mm512_store_ps(op.out + m * op.ld + first + v * 16, y[v]);
  for (int64_t span = 0; span < shape.spans(); ++span) {
    const int64_t g = span / shape.spans_per_group, in_group = (span - g * shape.spans_per_group) * shape.span_rows;
    const int64_t left = shape.group_rows - in_group, begin = g * shape.group_rows + in_group;
    __m512 acc[kM][kN];
    QD_UNROLL(4)
    for (int m = 0; m < kM; ++m)
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) acc[m][v] = _mm512_setzero_ps();
    for (int64_t part = 0; part < op.parts; ++part)
      add_rows(codes, tile.codes + begin * tile.width + first, tile.width,
               op.x + part * op.part_step + begin * x_row, op.pair_step,
               left < shape.span_rows ? left : shape.span_rows, acc);
    if (tile.zero) {
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) {
        const __m512 zero = _mm512_cvtepi32_ps(_mm512_sub_epi32(load_zeros(tile, g, first + v * 16), offset));
        QD_UNROLL(4)
        for (int m = 0; m < kM; ++m)
          acc[m][v] = _mm512_fnmadd_ps(zero, _mm512_set1_ps(op.sums[m * shape.spans() + span]), acc[m][v]);
      }
    }
    __m512 scale[kN];
    scales.load(tile.scale + g * tile.scale_step + first * bytes, scale);
    QD_UNROLL(4)
    for (int m = 0; m < kM; ++m)
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) {
        float* to = op.out + m * op.ld + first + v * 16;
        if (kM == 1)
          y[v] = _mm512_fmadd_ps(scale[v], acc[m][v], y[v]);
        else
          _mm512_store_ps(to, _mm512_fmadd_ps(scale[v], acc[m][v], _mm512_load_ps(to)));
      }
  }
  if (kM == 1)
    for (int v = 0; v < kN; ++v) _mm512_store_ps(op.out + first + v * 16, y[v]);
}

// kM rows times all outputs of a tile.
template <int kM, class Codes>
void few_rows_of_tile(const Codes& codes, const Operand& op) {
  const int32_t dtype = op.weight.scale_dtype;
  if (op.tile.width == kTile) {
    if (Codes::kPairs == 4 && dtype == QD_E4M3) return few_rows<kM, 4>(codes, Scales64(), op, 0);
    return few_rows<kM, 4>(codes, ScalesAny{dtype}, op, 0);
  }
  for (int64_t first = 0; first < op.tile.width; first += 16) few_rows<kM, 1>(codes, ScalesAny{dtype}, op, first);
}

}  // namespace
}  // namespace qd
