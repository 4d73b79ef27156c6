// The weight-only product: what linear.cpp (and moe.cpp) hand to the kernels of an instruction set, and the layout that
// all kernels read. docs/cpu-native.md has the layout in words.
//
//   y[i, o] = sum over groups of unit * scale[g, o] * sum over the group of (u - zero[g, o]) * x[i, c]
//
// u: the value of a slot: an integer code plus 2^(slot_bits-1) (zero: the stored zero point, which has that added too,
// or 2^(slot_bits-1) where there is none), or an fp4 or fp8 value (zero: 0).
//
// How to use it:
//   const Isa& isa = isa_in_use();
//   const Shape shape(weight);                               // experts of equal shape share it
//   for panels of at most isa.panel rows:
//     Work work = isa.plan(shape, m, dtype);                 // no computation
//     work.data = <work.bytes bytes, 64-byte aligned>;
//     isa.prepare(shape, rows, 0, m, work);                  // may be called from several threads, for other rows
//     in parallel, for tiles t and rows [begin, end):
//       isa.tile(weight, shape, work, begin, end, t, out, ld, scratch, next);   // scratch: a thread's work.scratch bytes
// begin must be a multiple of work.step (end too, or m). prepare is given the same ranges.
// A Work belongs to a Shape, not to a weight: all experts whose weights have this shape (and no columns of their own) use
// one. What is computed for a row depends neither on the threads nor on how rows and tiles are shared out among them.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "abi.h"

namespace qd {

constexpr int64_t kTile = 64;  // outputs of a tile
constexpr int64_t kSpan = 512;  // most columns that are summed up before a scale is applied, see Shape::span_rows

constexpr int32_t slots_of(int32_t slot_bits) { return 16 / slot_bits; }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What follows from a weight's numbers.
struct Shape {
  int64_t n, k, group, groups;
  int32_t format, slot_bits;
  int32_t slots;         // codes of a 16-bit word: 8, 5, 4, 3, 2
  int64_t dword_columns;  // of a dword: 2 * slots
  int64_t group_rows;    // dword rows of a group
  int64_t rows;          // dword rows in all
  int64_t padded_n;      // n up to a multiple of 16
  int64_t tiles;
  // Groups are summed in spans of this many dword rows (the last of a group may have fewer) so that fp32 sums stay
  // accurate however long a group is. A group of up to kSpan columns is one span.
  int64_t span_rows, spans_per_group;
  const int32_t* columns;  // [groups * group], -1 for none; or null: column c is column c

  explicit Shape(const qd_weight& w)
      : n(w.n), k(w.k), group(w.group), groups(w.groups), format(w.format), slot_bits(w.slot_bits),
        slots(slots_of(w.slot_bits)), dword_columns(2 * slots), group_rows(ceil_div(w.group, dword_columns)),
        rows(group_rows * w.groups), padded_n(ceil_div(w.n, 16) * 16), tiles(ceil_div(w.n, kTile)),
        columns(w.columns) {
    const int64_t most = kSpan / dword_columns;
    span_rows = group_rows <= most ? group_rows : most;
    spans_per_group = ceil_div(group_rows, span_rows);
  }

  int64_t spans() const { return groups * spans_per_group; }
  // Columns of x with the padding of groups, in the order in which kernels go through them: position p of group g is
  // g * padded_group() + p; slot j of word h of the group's dword row r is p = r * dword_columns + 2 * j + h.
  int64_t padded_group() const { return group_rows * dword_columns; }
  int64_t padded_k() const { return rows * dword_columns; }
  // The column of x at a position p < padded_group() of a group, -1 for padding.
  int64_t column(int64_t g, int64_t p) const {
    if (p >= group) return -1;
    if (columns) return columns[g * group + p];
    const int64_t c = g * group + p;
    return c < k ? c : -1;
  }
  // Columns of a group that are not padding; only without `columns`, where they are g * group, g * group + 1, ...
  int64_t group_columns(int64_t g) const {
    const int64_t left = k - g * group;
    return left < group ? left : group;
  }
  int64_t width(int64_t tile) const {
    const int64_t left = padded_n - tile * kTile;
    return left < kTile ? left : kTile;
  }
  // Outputs of a tile that are not padding.
  int64_t outputs(int64_t tile) const {
    const int64_t left = n - tile * kTile;
    return left < kTile ? left : kTile;
  }
};

constexpr int32_t scale_bytes(int32_t dtype) { return dtype == QD_FP32 ? 4 : dtype >= QD_E8M0 ? 1 : 2; }

// Where a tile's parts begin.
struct Tile {
  int64_t width;          // 16, 32, 48 or 64
  const uint32_t* codes;  // dword row r: codes + r * width
  const char* scale;      // group g: scale + g * scale_step, `width` values of weight.scale_dtype
  int64_t scale_step;     // bytes
  const uint8_t* zero;    // group g: zero + g * zero_step, of weight.zero_bits; null: none
  int64_t zero_step;      // width, or width / 2 with 4 bits (low nibble output i, high nibble output i + width / 2)

  Tile(const qd_weight& w, const Shape& s, int64_t tile) : width(s.width(tile)) {
    const int64_t first = tile * kTile;
    codes = w.packed + first * s.rows;
    scale_step = width * scale_bytes(w.scale_dtype);
    scale = static_cast<const char*>(w.scale) + first * s.groups * scale_bytes(w.scale_dtype);
    zero_step = w.zero_bits == 4 ? width / 2 : width;
    zero = w.zero_bits == 0 ? nullptr : w.zero + first * s.groups * w.zero_bits / 8;
  }
};

// Rows of x as the caller has them: row i is at x + (index ? index[i] : i) * stride, dtype as in qd_dtype (16, 32 bits).
struct Rows {
  const void* x;
  int64_t stride;  // in elements; the columns of a row are contiguous
  int32_t dtype;
  const int64_t* index;  // or null

  const char* row(int64_t i) const {
    return static_cast<const char*>(x) + (index ? index[i] : i) * stride * (dtype == QD_FP32 ? 4 : 2);
  }
};

// The rows of one call, prepared for all tiles. Written by plan, data filled by prepare; then only read.
struct Work {
  int64_t m;
  int32_t dtype;  // of x
  int32_t mode;   // the instruction set's own: which algorithm
  int64_t step;   // rows may be shared out in multiples of this
  size_t bytes;   // of data
  size_t scratch;  // bytes that tile needs for itself, 64-byte aligned; may be 0
  char* data;
};

// The tile that the caller asks for after this one, so that its memory can be fetched meanwhile; weight null: not known.
struct Next {
  const qd_weight* weight;
  const Shape* shape;
  int64_t tile;
};

struct Isa {
  int64_t panel;  // most rows of a Work
  // Up to how many tokens of a call the hidden values of experts stay fp32 (moe.cpp): where such rows cost no more.
  int64_t wide_tokens;
  Work (*plan)(const Shape& shape, int64_t m, int32_t dtype);
  // Rows [begin, end) of x into work.data.
  void (*prepare)(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Work& work);
  // out[(i - begin) * ld + o] for rows begin <= i < end and the outputs o < width of the tile: y without bias. Written,
  // not added to. out and ld * 4 are 64-byte aligned, ld >= 64.
  void (*tile)(const qd_weight& weight, const Shape& shape, const Work& work, int64_t begin, int64_t end, int64_t tile,
               float* out, int64_t ld, void* scratch, const Next& next);
  // y[o] = out[o] + bias[o] (bias may be null) for o < count, rounded to nearest even once to dtype.
  void (*store)(const float* out, const float* bias, int64_t count, void* y, int32_t dtype);
};

const Isa& portable();
#if defined(__x86_64__) || defined(__i386__)
const Isa& avx2();
const Isa& avx512();
const Isa& avx512_vnni();
#endif
// Of the instruction set in use (linear.cpp).
const Isa& isa_in_use();

// --- one value at a time, for what is not in an inner loop ---

inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }
inline uint16_t bf16_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN, kept quiet
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// Subnormals by arithmetic on normal numbers: threads may flush subnormals to zero.
inline float float_of_fp16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | ((rest & 0x3ff) << 13));
  if (rest < 0x400) return float_of_bits(sign | bits_of_float(static_cast<float>(rest) * 0x1p-24f));
  return float_of_bits(sign | ((rest << 13) + (112u << 23)));
}
inline uint16_t fp16_of_float(float value) {
  const uint32_t bits = bits_of_float(value), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (rest < 0x38800000) {  // below 2^-14: added to 0.5, the sum's last bits are the subnormal, rounded to even
    const float sum = float_of_bits(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(sum) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((rest - (112u << 23) + 0xfff + ((rest >> 13) & 1)) >> 13));
}
// e4m3 (the NaN codes too) and an exponent of two with bias 127 (255: NaN).
inline float float_of_e4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24, rest = code & 0x7f;
  if (rest == 0x7f) return float_of_bits(sign | 0x7fc00000);
  if (rest < 8) return float_of_bits(sign | bits_of_float(static_cast<float>(rest) * 0x1p-9f));
  return float_of_bits(sign | ((rest << 20) + (120u << 23)));
}
inline float float_of_e8m0(uint8_t code) {
  return float_of_bits(code == 255 ? 0x7fc00000 : code == 0 ? 0x00400000 : static_cast<uint32_t>(code) << 23);
}
// e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives.
inline float float_of_fp4(uint32_t code) {
  const float sign = code & 8 ? -0.5f : 0.5f;
  const uint32_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  return sign * static_cast<float>(twice[code & 7]);
}
inline float load_float(const void* values, int64_t i, int32_t dtype) {
  switch (dtype) {
    case QD_BF16: return float_of_bf16(static_cast<const uint16_t*>(values)[i]);
    case QD_FP16: return float_of_fp16(static_cast<const uint16_t*>(values)[i]);
    case QD_E8M0: return float_of_e8m0(static_cast<const uint8_t*>(values)[i]);
    case QD_E4M3: return float_of_e4m3(static_cast<const uint8_t*>(values)[i]);
    default: return static_cast<const float*>(values)[i];
  }
}
// The zero point of output i of a tile's group, 2^(slot_bits-1) included; of integers.
inline uint32_t zero_at(const Tile& tile, const Shape& shape, int64_t g, int64_t i) {
  if (tile.zero == nullptr) return 1u << (shape.slot_bits - 1);
  const uint8_t* zero = tile.zero + g * tile.zero_step;
  if (tile.zero_step == tile.width) return zero[i];
  const int64_t half = tile.width / 2;
  return i < half ? zero[i] & 15 : zero[i - half] >> 4;
}

// --- memory and entry points that others reuse (linear.cpp) ---

// 64-byte aligned memory of this thread, kept from call to call; valid until the thread asks for the same use again.
enum Use { kUseWork, kUseOut, kUseScratch, kUseRow, kUseMoe, kUseInt8, kUses };  // kUseRow: of prepare itself
void* thread_memory(Use use, size_t bytes);

// 0, or the (negative) error of a weight that no kernel can read.
int32_t check(const qd_weight& weight);

}  // namespace qd
