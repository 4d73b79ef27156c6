// int8 activations on AVX-512 with VNNI: vpdpbusd multiplies four unsigned bytes of codes with four signed ones of x and
// adds to an int32, without saturation. x stands in byte order (int8.h), so a dword of x is broadcast against 16
// outputs.
//
// Few rows: codes go from memory through a register into the sums. More rows: a stretch of a tile's codes becomes bytes
// in L1 (8-bit codes are bytes already) and is multiplied by blocks of up to 6 rows; sums of spans longer than a stretch
// wait in memory. Sums are integers, so both give the same result.
#include "int8.h"

#include "avx512_bytes.h"

#if defined(__x86_64__)
namespace qd {
namespace int8 {
namespace {

constexpr int64_t kBlockRows = 6;
constexpr int64_t kFewRows = 4;
constexpr int64_t kStretch = 96;  // dwords of bytes an output, that is 24 KB a tile

// Of the outputs of a tile's group.
struct Factors {
  alignas(64) float scale[kTile];
  alignas(64) int32_t zero[kTile];  // the offset included
  alignas(64) int32_t ones[kTile];  // products with the row of ones over the span, if asked for
};
struct Scratch {
  Factors factors;
  alignas(64) uint32_t bytes[kStretch * kTile];  // [dword][width]
  alignas(64) int32_t partial[1];                // [rows][kTile]
};

// Rows of x over a piece of a span, and what becomes of their sums.
struct Block {
  const int8_t* x[kBlockRows];  // at the piece's first dword
  int32_t sum[kBlockRows];      // of x less its zero point over the span
  int32_t zero[kBlockRows];     // of x
  int64_t rows;
  bool ones;                    // x[rows] is the row of ones
  bool known;                   // factors.ones holds its products
  bool first, last;             // is this the span's first piece, its last one?
  int32_t* partial;             // sums between pieces
  float* out;
  int64_t ld;
};

// kR rows (that of ones counts) times the kN * 16 outputs from `at` on of a piece of `count` dword rows.
template <int kBits, int kR, int kN>
void multiply(const uint32_t* code, int64_t width, int64_t count, Block& block, const Factors& factors, int64_t at) {
  using Codes = Bytes<kBits>;
  __m512i acc[kR][kN];
  const int8_t* x[kR];
  QD_UNROLL(6)
  for (int m = 0; m < kR; ++m) {
    x[m] = block.x[m];
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) {
      const __m512i zero = _mm512_load_si512(factors.zero + at + v * 16);
      acc[m][v] = !block.first ? _mm512_load_si512(block.partial + m * kTile + at + v * 16)
          : m < block.rows     ? _mm512_mullo_epi32(zero, _mm512_set1_epi32(-block.sum[m]))
                               : _mm512_setzero_si512();
    }
  }
  code += at;
  for (int64_t r = 0; r < count; ++r, code += width) {
    __m512i dwords[kN];
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) dwords[v] = load_ahead(code + v * 16);
    QD_UNROLL(4)
    for (int i = 0; i < Codes::kSteps; ++i) {
      __m512i bytes[kN];
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) bytes[v] = Codes().step(dwords[v], i);
      QD_UNROLL(6)
      for (int m = 0; m < kR; ++m) {
        int32_t four;
        memcpy(&four, x[m] + (r * Codes::kSteps + i) * 4, 4);
        const __m512i value = _mm512_set1_epi32(four);
        QD_UNROLL(4)
        for (int v = 0; v < kN; ++v) acc[m][v] = _mm512_dpbusd_epi32(acc[m][v], bytes[v], value);
      }
    }
  }
  if (!block.last) {
    QD_UNROLL(6)
    for (int m = 0; m < kR; ++m)
      QD_UNROLL(4)
      for (int v = 0; v < kN; ++v) _mm512_store_si512(block.partial + m * kTile + at + v * 16, acc[m][v]);
    return;
  }
  QD_UNROLL(6)
  for (int m = 0; m < kR; ++m) {
    if (m == block.rows) break;
    QD_UNROLL(4)
    for (int v = 0; v < kN; ++v) {
      __m512i sum = acc[m][v];
      if (block.ones || block.known) {
        const __m512i ones = block.ones ? acc[kR - 1][v] : _mm512_load_si512(factors.ones + at + v * 16);
        sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(ones, _mm512_set1_epi32(block.zero[m])));
      }
      float* to = block.out + m * block.ld + at + v * 16;
      const __m512 scale = _mm512_load_ps(factors.scale + at + v * 16);
      _mm512_store_ps(to, _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), _mm512_load_ps(to)));
    }
  }
}

using Multiply = void (*)(const uint32_t*, int64_t, int64_t, Block&, const Factors&, int64_t);

template <int kBits, int kN>
Multiply multiply_rows(int64_t rows) {
  // Codes of fewer bits come with more rows as bytes.
  constexpr int kSixth = kBits == 8 ? 6 : 5;
  static const Multiply kAll[kBlockRows] = {multiply<kBits, 1, kN>, multiply<kBits, 2, kN>, multiply<kBits, 3, kN>,
                                            multiply<kBits, 4, kN>, multiply<kBits, 5, kN>, multiply<kBits, kSixth, kN>};
  return kAll[rows - 1];
}

// All outputs of a tile.
template <int kBits>
void multiply_tile(const uint32_t* code, int64_t width, int64_t count, Block& block, const Factors& factors) {
  const int64_t rows = block.rows + block.ones;
  if (width == kTile) return multiply_rows<kBits, 4>(rows)(code, width, count, block, factors, 0);
  const Multiply run = multiply_rows<kBits, 1>(rows);
  for (int64_t at = 0; at < width; at += 16) run(code, width, count, block, factors, at);
}

void load_factors(const Shape& shape, const Tile& tile, int64_t g, Factors& factors) {
  const int32_t dtype = shape.weight->scale_dtype;
  for (int64_t o = 0; o < tile.width; o += 16) {
    const char* at = tile.scale + g * tile.scale_step + o * scale_bytes(dtype);
    _mm512_store_ps(factors.scale + o, load_scales(at, dtype));
    _mm512_store_si512(factors.zero + o, tile.zero ? load_zeros(tile, g, o) : _mm512_set1_epi32(shape.offset));
  }
}

// The part of x that a span (or a piece of it, from dword row `row` on) of rows [begin, begin + rows) multiplies with.
Block block_of(const Shape& shape, const Rows& x, int64_t begin, int64_t rows, int64_t row, int64_t span) {
  Block block{};
  block.rows = rows;
  for (int64_t i = 0; i < rows; ++i) {
    block.x[i] = x.bytes(begin + i) + row * shape.steps * 4;
    block.sum[i] = x.sums[(begin + i) * shape.spans + span];
    block.zero[i] = x.zero ? x.zero[begin + i] : 0;
  }
  return block;
}

// A span of `count` dword rows from `row` on, few rows of x.
template <int kBits>
void few_rows(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Tile& tile, int64_t row,
              int64_t count, int64_t span, float* out, int64_t ld, Scratch& scratch) {
  Block block = block_of(shape, x, begin, end - begin, row, span);
  block.ones = x.ones != nullptr;
  if (block.ones) block.x[block.rows] = x.ones + row * shape.steps * 4;
  block.first = block.last = true;
  block.out = out;
  block.ld = ld;
  multiply_tile<kBits>(tile.codes + row * tile.width, tile.width, count, block, scratch.factors);
}

// Bytes of `count` dword rows.
template <int kBits>
void decode(const uint32_t* code, int64_t width, int64_t count, uint32_t* bytes) {
  constexpr int kSteps = Bytes<kBits>::kSteps;
  for (int64_t r = 0; r < count; ++r, code += width, bytes += kSteps * width)
    for (int64_t o = 0; o < width; o += 16) {
      const __m512i dwords = _mm512_loadu_si512(code + o);
      QD_UNROLL(4)
      for (int i = 0; i < kSteps; ++i) _mm512_store_si512(bytes + i * width + o, Bytes<kBits>().step(dwords, i));
    }
}

// The same, more rows.
template <int kBits>
void many_rows(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Tile& tile, int64_t row,
               int64_t count, int64_t span, float* out, int64_t ld, Scratch& scratch) {
  constexpr int64_t kPiece = kStretch / Bytes<kBits>::kSteps;
  const int64_t step = ceil_div(end - begin, ceil_div(end - begin, kBlockRows));
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t piece = count - first < kPiece ? count - first : kPiece;
    const uint32_t* bytes = tile.codes + (row + first) * tile.width;
    if (kBits != 8) {
      decode<kBits>(bytes, tile.width, piece, scratch.bytes);
      bytes = scratch.bytes;
    }
    const int64_t dwords = piece * Bytes<kBits>::kSteps;
    if (x.ones) {
      Block block{};
      block.ones = true;
      block.x[0] = x.ones + (row + first) * shape.steps * 4;
      block.first = first == 0;
      block.partial = scratch.factors.ones;
      multiply_tile<8>(bytes, tile.width, dwords, block, scratch.factors);
    }
    for (int64_t i = begin; i < end; i += step) {
      Block block = block_of(shape, x, i, end - i < step ? end - i : step, row + first, span);
      block.known = x.ones != nullptr;
      block.first = first == 0;
      block.last = first + piece == count;
      block.partial = scratch.partial + (i - begin) * kTile;
      block.out = out + (i - begin) * ld;
      block.ld = ld;
      multiply_tile<8>(bytes, tile.width, dwords, block, scratch.factors);
    }
  }
}

template <int kBits>
void tile_of(const Shape& shape, const Rows& x, int64_t begin, int64_t end, int64_t index, float* out, int64_t ld,
             Scratch& scratch) {
  const Tile tile(*shape.weight, shape, index);
  const int64_t few = kBits == 8 && !x.ones ? kBlockRows : kFewRows;
  for (int64_t i = begin; i < end; ++i) memset(out + (i - begin) * ld, 0, static_cast<size_t>(tile.width) * 4);
  for (int64_t span = 0; span < shape.spans; ++span) {
    const int64_t g = span / shape.spans_per_group, in_group = (span - g * shape.spans_per_group) * shape.span_rows;
    const int64_t left = shape.group_rows - in_group, count = left < shape.span_rows ? left : shape.span_rows;
    if (in_group == 0) load_factors(shape, tile, g, scratch.factors);
    const auto run = end - begin <= few ? few_rows<kBits> : many_rows<kBits>;
    run(shape, x, begin, end, tile, g * shape.group_rows + in_group, count, span, out, ld, scratch);
  }
}

void tile(const Shape& shape, const Rows& x, int64_t begin, int64_t end, int64_t index, float* out, int64_t ld,
          void* memory) {
  Scratch& scratch = *static_cast<Scratch*>(memory);
  switch (shape.slot_bits) {
    case 2: return tile_of<2>(shape, x, begin, end, index, out, ld, scratch);
    case 3: return tile_of<3>(shape, x, begin, end, index, out, ld, scratch);
    case 4: return tile_of<4>(shape, x, begin, end, index, out, ld, scratch);
    case 5: return tile_of<5>(shape, x, begin, end, index, out, ld, scratch);
    default: return tile_of<8>(shape, x, begin, end, index, out, ld, scratch);
  }
}

Order order(int32_t) { return kBytes; }

size_t scratch(const Shape&, int64_t rows) { return sizeof(Scratch) + static_cast<size_t>(rows * kTile) * 4; }

}  // namespace

const Isa& avx512() {
  static const Isa isa{order, scratch, tile, avx2().range, avx2().quantize, avx2().store};
  return isa;
}

}  // namespace int8
}  // namespace qd
QD_AVX512_END
#endif
