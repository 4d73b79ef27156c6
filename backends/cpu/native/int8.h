// The linear with int8 activations: what int8.cpp hands to the kernels of an instruction set, and what it wants back.
//
//   y[i, o] = sx[i] * sum over groups of scale[g, o] * sum over the group of (u - off - z[g, o]) * (x[i, c] - zx[i])
//
// u: stored codes (0 .. 2^slot_bits - 1), off = 2^(slot_bits-1), x: codes of x (at most 8 bits), zx: their zero point.
// The inner sum is exact integer arithmetic. A group is cut into *spans* of at most 32768 columns: there every int32
// sum is exact, whatever the codes (255 * 255 * 32768 < 2^31). Each span's sum is rounded to fp32 once and scaled.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

namespace qd {
namespace int8 {

constexpr int64_t kSpanColumns = 32768;

// As for weight-only kernels, with spans of kSpanColumns and what else is needed here. Made once a call.
struct Shape : qd::Shape {
  const qd_weight* weight;
  int32_t steps;   // of the byte order below: ceil(slots / 2)
  int32_t offset;  // 2^(slot_bits-1)
  int64_t spans;   // groups * spans_per_group

  explicit Shape(const qd_weight& w)
      : qd::Shape(w), weight(&w), steps((slots + 1) / 2), offset(1 << (w.slot_bits - 1)) {
    const int64_t most = kSpanColumns / dword_columns;
    span_rows = group_rows <= most ? group_rows : most;
    spans_per_group = ceil_div(group_rows, span_rows);
    spans = groups * spans_per_group;
  }
};

// How a row of x's codes is stored. Padding columns are 0 in both.
enum Order {
  // int16 [rows * dword_columns], the columns in order, each *less its zero point* (-255 .. 255): for slot j of a dword
  // row the dword [2j, 2j + 1].
  kWords,
  // int8 [rows][steps][4], with the zero point left in. Step i takes from both words of a dword slot i (low byte) and
  // slot i + steps (high byte; none if that is >= slots): bytes are the columns 2i, 2(i+steps), 2i+1, 2(i+steps)+1. With
  //   t = word >> (slot_bits * i)
  // the low byte is t & mask and the high byte (t >> (slot_bits * steps - 8)) & (mask << 8), mask = 2^slot_bits - 1:
  // for 2, 4 and 8 bits simply t & (mask * 0x0101).
  kBytes
};

// The quantized rows of x.
struct Rows {
  const void* codes;    // rows of `stride` bytes, 64-byte aligned
  int64_t stride;
  int64_t m;
  const int32_t* sums;  // [m][spans]: sum over the span's columns of (x - zx)
  // Only in byte order, and only if some zero point is not 0 (else both null): zx [m], and a row of codes that is 1
  // in every column and 0 in the padding. Its products u . ones = U give the rest of the span's sum:
  //   sum (u - off - z)(x - zx) = sum u x  -  (off + z) * sums[i][span]  -  zx[i] * U      (exact modulo 2^32)
  const int32_t* zero;
  const int8_t* ones;

  const int8_t* bytes(int64_t i) const { return (const int8_t*)codes + i * stride; }
  const int16_t* words(int64_t i) const { return (const int16_t*)((const char*)codes + i * stride); }
};

// One scale and zero point of a row (or of all).
struct Quantizer {
  float scale, zero;   // zero: an integer; 0 if symmetric
  float low, high;     // range of the codes
  int32_t shift;       // subtracted from the codes (the zero point for words, 0 for bytes)
};

// The function table of an instruction set.
struct Isa {
  Order (*order)(int32_t slot_bits);
  // Bytes of scratch that tile() needs for up to `rows` rows. The caller gives 64-byte aligned memory.
  size_t (*scratch)(const Shape& shape, int64_t rows);
  // out[i - begin][o] (stride ld floats, o < tile_width, 64-byte aligned, need not be zeroed) = sum over spans of
  // scale * float(sum of the span), for rows begin <= i < end. Without unit, sx and bias, which int8.cpp applies.
  void (*tile)(const Shape& shape, const Rows& x, int64_t begin, int64_t end, int64_t tile, float* out, int64_t ld,
               void* scratch);
  // Smallest and largest of a row (dtype as in qd_dtype), as fp32; both NaN if any value is.
  void (*range)(const void* x, int32_t dtype, int64_t k, float* smallest, float* largest);
  // codes[c] = clamp(round_half_even(x[c] / scale + zero), low, high) - shift. Returns whether x has a NaN (its code is
  // any). A true division, never a reciprocal.
  bool (*quantize)(const void* x, int32_t dtype, int64_t k, const Quantizer& by, int16_t* codes);
  // y[o] = values[o] * factor + bias[o] (bias may be null), rounded to dtype once, to nearest even.
  void (*store)(const float* values, int64_t count, float factor, const float* bias, void* y, int32_t dtype);
};

const Isa& portable();
#if defined(__x86_64__)
const Isa& avx2();    // its range, quantize and store serve avx512 as well
const Isa& avx512();
#endif

}  // namespace int8
}  // namespace qd
