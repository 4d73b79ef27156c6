// The weight-only product on AVX-512 with VNNI, x in fixed point (avx512_fixed_prepare.h): codes times the three bytes of
// an integer, in exact integer sums of a span, 64 products an instruction. Where processors take two cycles for 32
// products of bf16 (Intel's do; measured on Emerald Rapids: 1.3 vdpbf16ps a nanosecond, and 5.7 vpdpbusd) that is the
// faster way at any number of rows, although it multiplies three times; and x in fp16 or fp32 costs no more than in bf16.
// e4m3 weights are no such integers: those take the products of bf16 pairs, avx512.cpp.
//
// Up to four rows: codes go from memory through a register into the sums. More: a span of a tile becomes bytes in L1
// (8-bit codes are bytes already) and is multiplied by blocks of two rows. Sums are integers: both give the same.
#if defined(__x86_64__) || defined(__i386__)
#include "avx512_bytes.h"
#include "avx512_fixed_prepare.h"
#include "avx512_floats.h"

namespace qd {
namespace {

constexpr int64_t kFixedBlock = 2, kFixedFew = 4;
// e4m3: up to so many rows go through products of bf16 pairs, further ones are multiplied in fp32.
constexpr int64_t kFloatsFrom = 3;
enum { kFloats = 2 };  // a mode that avx512.cpp does not have
constexpr int64_t kFixedPanel = 128;  // rows, whose planes should stay in L2

// Scratch of a thread.
struct FixedScratch {
  alignas(64) float scale[kTile];
  alignas(64) float zero[kTile];  // the offset included
  alignas(64) uint32_t bytes[kSpan / 4 * kTile];  // [dword][width]
};

// Rows of x over a span, and where their sums go.
struct FixedBlock {
  const int8_t* x;  // the first row's first plane, at the span
  int64_t plane;
  const float *unit, *sum;  // of the first row, at the span
  int64_t spans;            // to the next row's
  float* out;
  int64_t ld;
};

// kM rows times the kN * 16 outputs from `at` on of `count` dword rows.
template <class Codes, int kM, int kN, bool kAhead>
void multiply_span(const Codes& codes, const uint32_t* code, int64_t width, int64_t count, const FixedBlock& block,
                   const FixedScratch& factors, int64_t at) {
  constexpr int kRows = kM * kDigits;
  __m512i acc[kRows][kN];
  const int8_t* x[kRows];
  QD_UNROLL(6)
  for (int q = 0; q < kRows; ++q) {
    x[q] = block.x + q * block.plane;
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) acc[q][v] = _mm512_setzero_si512();
  }
  code += at;
  for (int64_t r = 0; r < count; ++r, code += width) {
    __m512i dwords[kN];
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) dwords[v] = kAhead ? load_ahead(code + v * 16) : _mm512_loadu_si512(code + v * 16);
    QD_UNROLL(4)
    for (int i = 0; i < Codes::kSteps; ++i) {
      __m512i bytes[kN];
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) bytes[v] = codes.step(dwords[v], i);
      QD_UNROLL(6)
      for (int q = 0; q < kRows; ++q) {
        int32_t four;
        memcpy(&four, x[q] + (r * Codes::kSteps + i) * 4, 4);
        const __m512i value = _mm512_set1_epi32(four);
        QD_UNROLL(4)
        for (int v = 0; v < kN; ++v) acc[q][v] = _mm512_dpbusd_epi32(acc[q][v], bytes[v], value);
      }
    }
  }
  QD_UNROLL(6)
  for (int q = 0; q < kRows; ++q)
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) as_it_is(acc[q][v]);
  QD_UNROLL(6)
  for (int q = 0; q < kRows; q += kDigits) {
    const int64_t m = q / kDigits;
    const __m512 unit = _mm512_set1_ps(block.unit[m * block.spans]), sum = _mm512_set1_ps(block.sum[m * block.spans]);
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) {
      __m512 value = _mm512_cvtepi32_ps(acc[q][v]);
      value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[q + 1][v]), _mm512_set1_ps(0x1p8f), value);
      value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[q + 2][v]), _mm512_set1_ps(0x1p16f), value);
      value = _mm512_fnmadd_ps(_mm512_load_ps(factors.zero + at + v * 16), sum, value);
      float* to = block.out + m * block.ld + at + v * 16;
      const __m512 scale = _mm512_load_ps(factors.scale + at + v * 16);
      _mm512_store_ps(to, _mm512_fmadd_ps(scale, _mm512_mul_ps(unit, value), _mm512_load_ps(to)));
    }
  }
}

template <class Codes, int kM, bool kAhead>
void multiply_all(const Codes& codes, const uint32_t* code, int64_t width, int64_t count, const FixedBlock& block,
                  const FixedScratch& factors) {
  if (width == kTile) return multiply_span<Codes, kM, 4, kAhead>(codes, code, width, count, block, factors, 0);
  for (int64_t at = 0; at < width; at += 16)
    multiply_span<Codes, kM, 1, kAhead>(codes, code, width, count, block, factors, at);
}

template <class Codes, bool kAhead>
void multiply_rows(int64_t m, const Codes& codes, const uint32_t* code, int64_t width, int64_t count,
                   const FixedBlock& block, const FixedScratch& factors) {
  if (m == 1) return multiply_all<Codes, 1, kAhead>(codes, code, width, count, block, factors);
  multiply_all<Codes, 2, kAhead>(codes, code, width, count, block, factors);
}

// Scales and zero points of a group. `scales`: how to load those of a full tile.
template <class Scales>
void fixed_factors(const Scales& scales, const qd_weight& weight, const Tile& tile, int64_t g,
                   FixedScratch& factors) {
  const char* at = tile.scale + g * tile.scale_step;
  if (tile.width == kTile) {
    __m512 scale[4];
    scales.load(at, scale);
    for (int v = 0; v < 4; ++v) _mm512_store_ps(factors.scale + v * 16, scale[v]);
  } else {
    for (int64_t o = 0; o < tile.width; o += 16)
      _mm512_store_ps(factors.scale + o, load_scales(at + o * scale_bytes(weight.scale_dtype), weight.scale_dtype));
  }
  if (tile.zero)
    for (int64_t o = 0; o < tile.width; o += 16)
      _mm512_store_ps(factors.zero + o, _mm512_cvtepi32_ps(load_zeros(tile, g, o)));
}

template <class Codes, class Scales>
void fixed_spans(const Codes& codes, const Scales& scales, const qd_weight& weight, const Shape& shape,
                 const Fixed& fixed, const Tile& tile, int64_t begin, int64_t m, float* out, int64_t ld,
                 FixedScratch& scratch) {
  const int64_t width = tile.width;
  for (int64_t span = 0; span < fixed.spans; ++span) {
    const int64_t g = span / shape.spans_per_group, in_group = (span - g * shape.spans_per_group) * shape.span_rows;
    const int64_t left = shape.group_rows - in_group, count = left < shape.span_rows ? left : shape.span_rows;
    const int64_t row = g * shape.group_rows + in_group;
    fetch_factors(tile, g + 4);
    if (in_group == 0) fixed_factors(scales, weight, tile, g, scratch);
    const uint32_t* const code = tile.codes + row * width;
    const bool few = m <= kFixedFew;
    const uint32_t* bytes = code;
    if (!few && Codes::kSteps > 1) {
      uint32_t* to = scratch.bytes;
      for (int64_t r = 0; r < count * width; r += width, to += Codes::kSteps * width)
        for (int64_t o = 0; o < width; o += 16) {
          const __m512i dwords = load_ahead(code + r + o);
          QD_UNROLL(4)
          for (int i = 0; i < Codes::kSteps; ++i) _mm512_store_si512(to + i * width + o, codes.step(dwords, i));
        }
      bytes = scratch.bytes;
    }
    for (int64_t i = 0; i < m; i += kFixedBlock) {
      const FixedBlock block{fixed.planes(begin + i) + row * fixed.steps * 4, fixed.plane,
                             fixed.units(begin + i) + span, fixed.sums(begin + i) + span, fixed.spans, out + i * ld, ld};
      const int64_t height = m - i < kFixedBlock ? m - i : kFixedBlock;
      if (few)
        multiply_rows<Codes, true>(height, codes, code, width, count, block, scratch);
      else if (Codes::kSteps > 1)
        multiply_rows<Bytes<8>, false>(height, Bytes<8>(), bytes, width, count * Codes::kSteps, block, scratch);
      else
        multiply_rows<Codes, true>(height, codes, code, width, count, block, scratch);
    }
  }
}

// A slot's value less the zero point.
float value_at(const Shape& shape, const Tile& tile, int64_t g, int64_t o, uint32_t slot) {
  if (shape.format == QD_FP4) return float_of_fp4(slot);
  return static_cast<float>(slot) - static_cast<float>(zero_at(tile, shape, g, o));
}

// What is not finite in a row of x, times its column.
void add_not_finite(const qd_weight& weight, const Shape& shape, const Tile& tile, const char* row, int32_t dtype,
                    float* out) {
  const uint32_t mask = (1u << shape.slot_bits) - 1;
  for (int64_t g = 0; g < shape.groups; ++g)
    for (int64_t p = 0; p < shape.padded_group(); ++p) {
      const int64_t column = shape.column(g, p);
      const float x = column < 0 ? 0 : load_float(row, column, dtype);
      if ((bits_of_float(x) & 0x7f800000) != 0x7f800000) continue;
      const int64_t in_row = p % shape.dword_columns;
      const uint32_t* const code = tile.codes + (g * shape.group_rows + p / shape.dword_columns) * tile.width;
      const auto shift = static_cast<uint32_t>(16 * (in_row & 1) + in_row / 2 * shape.slot_bits);
      for (int64_t o = 0; o < tile.width; ++o) {
        const float scale = load_float(tile.scale + g * tile.scale_step, o, weight.scale_dtype);
        out[o] += scale * value_at(shape, tile, g, o, code[o] >> shift & mask) * x;
      }
    }
}

template <class Codes>
void fixed_tile(const Codes& codes, const qd_weight& weight, const Shape& shape, const Fixed& fixed, const Tile& tile,
                int64_t begin, int64_t m, float* out, int64_t ld, FixedScratch& scratch) {
  if (weight.scale_dtype == QD_E4M3)
    return fixed_spans(codes, Scales64(), weight, shape, fixed, tile, begin, m, out, ld, scratch);
  fixed_spans(codes, ScalesAny{weight.scale_dtype}, weight, shape, fixed, tile, begin, m, out, ld, scratch);
}

Work plan_fixed(const Shape& shape, int64_t m, int32_t dtype) {
  if (shape.format == QD_FP8) return m < kFloatsFrom ? avx512().plan(shape, m, dtype) : plan_floats(shape, m, dtype, kFloats);
  Work work{};
  work.m = m;
  work.dtype = dtype;
  work.step = m == 1 ? 1 : kFixedBlock;
  work.bytes = Fixed(shape, work).bytes();
  work.scratch = sizeof(FixedScratch);
  return work;
}

void prepare_fixed(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Work& work) {
  if (work.mode == kFloats) return prepare_floats(shape, x, begin, end, work);
  if (shape.format == QD_FP8) return avx512().prepare(shape, x, begin, end, work);
  const Fixed fixed(shape, work);
  for (int64_t i = begin; i < end; ++i) prepare_fixed_row(shape, fixed, i, x.row(i), work.dtype);
}

void tile_fixed(const qd_weight& weight, const Shape& shape, const Work& work, int64_t begin, int64_t end,
                int64_t index, float* out, int64_t ld, void* memory, const Next& next) {
  if (shape.format == QD_FP8 && work.mode != kFloats) return avx512().tile(weight, shape, work, begin, end, index, out, ld, memory, next);
  if (end <= begin) return;
  const Tile tile(weight, shape, index);
  const int64_t m = end - begin;
  for (int64_t i = 0; i < m; ++i) memset(out + i * ld, 0, static_cast<size_t>(tile.width) * 4);
  if (work.mode == kFloats) {
    tile_floats(weight, shape, work, tile, begin, m, out, ld, *static_cast<FloatScratch*>(memory));
    return multiply_units(weight.unit, m, tile.width, out, ld);
  }
  const Fixed fixed(shape, work);
  FixedScratch& scratch = *static_cast<FixedScratch*>(memory);
  const float zero = static_cast<float>(shape.format == QD_FP4 ? Fp4Bytes::kOffset : 1 << (shape.slot_bits - 1));
  for (int64_t o = 0; o < kTile; ++o) scratch.zero[o] = zero;
  if (shape.format == QD_FP4) {
    fixed_tile(Fp4Bytes(), weight, shape, fixed, tile, begin, m, out, ld, scratch);
  } else {
    switch (shape.slot_bits) {
      case 2: fixed_tile(Bytes<2>(), weight, shape, fixed, tile, begin, m, out, ld, scratch); break;
      case 3: fixed_tile(Bytes<3>(), weight, shape, fixed, tile, begin, m, out, ld, scratch); break;
      case 4: fixed_tile(Bytes<4>(), weight, shape, fixed, tile, begin, m, out, ld, scratch); break;
      case 5: fixed_tile(Bytes<5>(), weight, shape, fixed, tile, begin, m, out, ld, scratch); break;
      default: fixed_tile(Bytes<8>(), weight, shape, fixed, tile, begin, m, out, ld, scratch); break;
    }
  }
  multiply_units(shape.format == QD_FP4 ? weight.unit * 0.5f : weight.unit, m, tile.width, out, ld);
  for (int64_t i = 0; i < m; ++i) {
    const RowFacts& facts = fixed.facts(begin + i);
    if (!facts.all_finite) add_not_finite(weight, shape, tile, facts.row, work.dtype, out + i * ld);
  }
}

}  // namespace

const Isa& avx512_vnni() {
  static const Isa isa = {kFixedPanel, INT64_MAX, plan_fixed, prepare_fixed, tile_fixed, avx512().store};
  return isa;
}

}  // namespace qd
QD_AVX512_END
#endif
