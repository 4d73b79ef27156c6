// Rows of x in fixed point, for AVX-512 with VNNI. Included after avx512_base.h.
//
// Over a span the values of a row are integers times a power of two, the row's *unit*: the largest has 22 bits, so that
// an element loses nothing but what is below 2^-23 of the largest, which a sum in fp32 would lose too. (Of bf16, that
// is what is smaller than 2^-14 of it.) An integer is three signed bytes: 65536 a + 256 b + c.
//
// A row is three planes of bytes (c, b, a), each in the byte order of int8.h, [rows][steps][4], with 0 for padding.
// Rows come in blocks of work.step. After the planes: units and sums of x (in units) over spans, fp32 [m][spans] each,
// and what is not finite: such values are 0 in the planes, and added apart.
#pragma once
#include "avx512_base.h"

namespace qd {
namespace {

constexpr int64_t kDigits = 3;

// What is kept of a row beside its planes.
struct RowFacts {
  const char* row;   // as the caller has it
  int64_t all_finite;
};

struct Fixed {
  int64_t plane;  // bytes; no multiple of 4096, as planes are read side by side
  int64_t steps;  // of a dword row
  int64_t rows;   // of all blocks
  char* data;
  int64_t m, spans;

  Fixed(const Shape& shape, const Work& work)
      : plane(ceil_div(shape.rows * steps_of(shape) * 4, 64) * 64 + 64), steps(steps_of(shape)),
        rows(ceil_div(work.m, work.step) * work.step), data(work.data), m(work.m), spans(shape.spans()) {}

  static int64_t steps_of(const Shape& shape) { return (shape.slots + 1) / 2; }
  size_t bytes() const {
    return static_cast<size_t>(rows * kDigits * plane + m * spans * 8) + static_cast<size_t>(m) * sizeof(RowFacts);
  }
  int8_t* planes(int64_t i) const { return (int8_t*)data + i * kDigits * plane; }
  RowFacts& facts(int64_t i) const { return ((RowFacts*)(data + rows * kDigits * plane))[i]; }
  float* units(int64_t i) const { return (float*)&facts(m) + i * spans; }
  float* sums(int64_t i) const { return (float*)&facts(m) + (m + i) * spans; }
};

// How the columns of some dword rows become bytes.
struct ByteOrder {
  int64_t rows, columns, bytes;  // of so many dword rows
  alignas(64) uint8_t index[64];
  uint64_t present;  // slots that a word has
};
constexpr ByteOrder byte_order(int bits) {
  ByteOrder order{};
  const int slots = 16 / bits, steps = (slots + 1) / 2, columns = 2 * slots;
  order.rows = 64 / (columns > 4 * steps ? columns : 4 * steps);
  order.columns = columns * order.rows;
  order.bytes = 4 * steps * order.rows;
  for (int at = 0; at < order.bytes; ++at) {
    const int row = at / (4 * steps), step = at / 4 % steps, slot = step + (at & 1) * steps, word = at >> 1 & 1;
    if (slot >= slots) continue;
    order.index[at] = static_cast<uint8_t>(row * columns + 2 * slot + word);
    order.present |= uint64_t{1} << at;
  }
  return order;
}
inline const ByteOrder& order_of(int32_t slot_bits) {
  static constexpr ByteOrder kOrders[] = {byte_order(2), byte_order(3), byte_order(4), byte_order(5), byte_order(8)};
  return kOrders[slot_bits == 8 ? 4 : slot_bits - 2];
}

// A span of a row, padded for loads of 64 positions.
struct Positions {
  alignas(64) float values[kSpan + 64];
  alignas(64) int32_t integers[kSpan + 64];
};

// The largest magnitude among `count` values from a multiple of 16, as its bits.
inline int32_t largest(const float* values, int64_t count) {
  __m512i most = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t i = 0; i < count; i += 16)
    most = _mm512_max_epi32(most, _mm512_and_si512(bits(_mm512_load_ps(values + i)), magnitude));
  return _mm512_reduce_max_epi32(most);
}

// Sets to 0 what is not finite.
inline void keep_finite(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if ((bits_of_float(values[i]) & 0x7f800000) == 0x7f800000) values[i] = 0;
}

inline void load_span(const Shape& shape, const char* row, int64_t g, int64_t first, int64_t columns, int64_t count,
                      int32_t dtype, float* values) {
  const int64_t size = dtype == QD_FP32 ? 4 : 2;
  if (shape.columns == nullptr) {
    const char* from = row + (g * shape.group + first) * size;
    for (int64_t p = 0; p < count; p += 16)
      _mm512_store_ps(values + p, p < columns ? load_x(from + p * size, lanes(columns - p), dtype) : _mm512_setzero_ps());
  } else {
    for (int64_t p = 0; p < count; ++p) {
      const int64_t column = p < columns ? shape.columns[g * shape.group + first + p] : -1;
      values[p] = column < 0 ? 0 : load_float(row, column, dtype);
    }
  }
}

// The planes of `count` dword rows.
inline void store_digits(const ByteOrder& order, const int32_t* integers, int64_t count, int8_t* to, int64_t plane) {
  const __m512i index = _mm512_load_si512(order.index), half = _mm512_set1_epi32(128);
  for (int64_t row = 0; row < count; row += order.rows, integers += order.columns, to += order.bytes) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i) v[i] = _mm512_loadu_si512(integers + 16 * i);
    const int64_t bytes = row + order.rows <= count ? order.bytes : order.bytes / order.rows * (count - row);
    const __mmask64 some = bytes == 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1;
    for (int64_t digit = 0; digit < kDigits; ++digit) {
      alignas(64) int8_t low[64];
      for (int i = 0; i < 4; ++i) {
        _mm_store_si128((__m128i*)(low + 16 * i), _mm512_cvtepi32_epi8(v[i]));
        v[i] = _mm512_srai_epi32(_mm512_add_epi32(v[i], half), 8);
      }
      const __m512i ordered = _mm512_maskz_permutexvar_epi8(order.present, index, _mm512_load_si512(low));
      _mm512_mask_storeu_epi8(to + digit * plane, some, ordered);
    }
  }
}

inline void prepare_fixed_row(const Shape& shape, const Fixed& fixed, int64_t i, const char* row, int32_t dtype) {
  // The exponent of a largest value below which units would be subnormal.
  constexpr int32_t kBits = 21, kLeast = kBits + 1, kBias = 127;
  const ByteOrder& order = order_of(shape.slot_bits);
  RowFacts& facts = fixed.facts(i);
  facts = {row, 1};
  Positions span;
  for (int64_t s = 0; s < fixed.spans; ++s) {
    const int64_t g = s / shape.spans_per_group, in_group = (s - g * shape.spans_per_group) * shape.span_rows;
    const int64_t left = shape.group_rows - in_group, rows = left < shape.span_rows ? left : shape.span_rows;
    const int64_t first = in_group * shape.dword_columns, padded = ceil_div(rows * shape.dword_columns, 16) * 16;
    const int64_t columns = (shape.columns ? shape.group : shape.group_columns(g)) - first;
    load_span(shape, row, g, first, columns, padded, dtype, span.values);
    int32_t most = largest(span.values, padded);
    if (most >= 0x7f800000) {
      facts.all_finite = 0;
      keep_finite(span.values, padded);
      most = largest(span.values, padded);
    }
    const int32_t exponent = most >> 23 > kLeast ? most >> 23 : kLeast;
    const __m512 by = _mm512_set1_ps(float_of_bits(static_cast<uint32_t>(2 * kBias + kBits - exponent) << 23));
    __m512i sum = _mm512_setzero_si512();
    for (int64_t p = 0; p < padded; p += 16) {
      const __m512i integer = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(span.values + p), by));
      sum = _mm512_add_epi32(sum, integer);
      _mm512_store_si512(span.integers + p, integer);
    }
    for (int64_t p = padded; p < padded + 64 && p < kSpan + 64; p += 16)
      _mm512_store_si512(span.integers + p, _mm512_setzero_si512());
    fixed.units(i)[s] = float_of_bits(static_cast<uint32_t>(exponent - kBits) << 23);
    fixed.sums(i)[s] = _mm512_reduce_add_ps(_mm512_cvtepi32_ps(sum));
    const int64_t row_bytes = fixed.steps * 4;
    store_digits(order, span.integers, rows, fixed.planes(i) + (g * shape.group_rows + in_group) * row_bytes,
                 fixed.plane);
  }
}

}  // namespace
}  // namespace qd
