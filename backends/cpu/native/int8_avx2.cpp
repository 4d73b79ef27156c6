// int8 activations with AVX2, without a product of bytes that could saturate.
//
// Codes of 8 bits are taken as 16-bit words: vpmaddwd adds two products in 32 bits. Codes of up to 5 bits are taken as
// bytes: a pair of products u * x (u below 2^b, x of 8 bits) is at most 2 * (2^b - 1) * 128 <= 7936, so vpmaddubsw, whose
// sums saturate at 2^15, is exact here, and so are the 16-bit sums of as many of its results as fit (kAdds).
//
// A tile is taken in chunks of its rows. One row of x is multiplied with the packed codes as they lie. For more, a
// chunk's codes are unpacked once to what the multiplication reads (4 bytes or 2 words a dword) and go through blocks of
// 6 rows by 16 outputs. Sums of a chunk wait in int32 memory until their span ends.
#include "int8.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#include <string.h>

#include <algorithm>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define QD_INLINE inline __attribute__((always_inline))

namespace qd {
namespace int8 {
namespace {

using Vec = __m256i;

QD_INLINE Vec load(const void* from) { return _mm256_loadu_si256(static_cast<const Vec*>(from)); }
QD_INLINE void keep(void* to, Vec v) { _mm256_storeu_si256(static_cast<Vec*>(to), v); }
QD_INLINE Vec spread(const int32_t* from) { return _mm256_set1_epi32(*from); }

// sum + v, written where sum stands. Left to themselves, compilers move all products of a step before the first of its
// additions, and with 12 sums there are no registers for them.
QD_INLINE Vec add32(Vec sum, Vec v) {
  __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(v));
  return sum;
}
QD_INLINE Vec add16(Vec sum, Vec v) {
  __asm__ volatile("vpaddw %1, %0, %0" : "+x"(sum) : "x"(v));
  return sum;
}

// What is read next comes from memory meanwhile.
QD_INLINE void fetch(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }

// --- codes of a dword to what is multiplied ---

template <int kBits>
struct Codes {
  static constexpr int kSlots = 16 / kBits;
  static constexpr int kSteps = (kSlots + 1) / 2;
  static constexpr int kMask = (1 << kBits) - 1;
  static constexpr int kHigh = kBits * kSteps - 8;  // from where the high byte's code is to where it belongs
  // Results of vpmaddubsw that can be added in 16 bits.
  static constexpr int kAdds = 32767 / (2 * kMask * 128);
  static_assert(kAdds >= 1, "a pair of products must fit 16 bits");

  static QD_INLINE Vec step(Vec v, int i) {
    const Vec t = _mm256_srli_epi16(v, kBits * i);
    if (kHigh == 0) return _mm256_and_si256(t, _mm256_set1_epi16(kMask * 0x101));
    const Vec low = _mm256_and_si256(t, _mm256_set1_epi16(kMask));
    if (i + kSteps >= kSlots) return low;
    return _mm256_or_si256(low, _mm256_and_si256(_mm256_srli_epi16(t, kHigh), _mm256_set1_epi16(kMask << 8)));
  }
  static QD_INLINE Vec multiply(Vec codes, Vec x) { return _mm256_maddubs_epi16(codes, x); }
};

// As words: even columns are the low byte and then the high one.
template <>
struct Codes<8> {
  static constexpr int kSteps = 2;
  static constexpr int kAdds = 0;  // no 16-bit sums

  static QD_INLINE Vec step(Vec v, int i) {
    return i == 0 ? _mm256_and_si256(v, _mm256_set1_epi16(0xff)) : _mm256_srli_epi16(v, 8);
  }
  static QD_INLINE Vec multiply(Vec codes, Vec x) { return _mm256_madd_epi16(codes, x); }
};

QD_INLINE Vec widened(Vec words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

// --- products ---

constexpr int64_t kAhead = 512;  // dwords

template <int kVectors>
QD_INLINE void fetch_row(const uint32_t* codes) {
  for (int v = 0; v < kVectors; v += 2) fetch(reinterpret_cast<const char*>(codes + kAhead + 8 * v));
}

// One row of x times kVectors * 8 outputs of a chunk as packed. sums[8v ..] += . codes: dword row r at r * width.
template <int kBits, int kVectors>
void one_row(const uint32_t* codes, int64_t width, int64_t rows, const int32_t* x, int32_t* sums) {
  using C = Codes<kBits>;
  Vec wide[kVectors];
  for (int v = 0; v < kVectors; ++v) wide[v] = load(sums + 8 * v);
  if (C::kAdds == 0) {
    for (int64_t r = 0; r < rows; ++r, codes += width, x += C::kSteps) {
      fetch_row<kVectors>(codes);
      for (int v = 0; v < kVectors; ++v) {
        const Vec dwords = load(codes + 8 * v);
        for (int i = 0; i < C::kSteps; ++i)
          wide[v] = _mm256_add_epi32(wide[v], C::multiply(C::step(dwords, i), spread(x + i)));
      }
    }
  } else {
    constexpr int kRows = C::kAdds == 0 ? 1 : C::kAdds / C::kSteps;
    for (int64_t r = 0; r < rows;) {
      const int64_t end = std::min<int64_t>(r + kRows, rows);
      Vec narrow[kVectors];
      for (int v = 0; v < kVectors; ++v) narrow[v] = _mm256_setzero_si256();
      for (; r < end; ++r, codes += width, x += C::kSteps) {
        fetch_row<kVectors>(codes);
        for (int v = 0; v < kVectors; ++v) {
          const Vec dwords = load(codes + 8 * v);
          for (int i = 0; i < C::kSteps; ++i)
            narrow[v] = _mm256_add_epi16(narrow[v], C::multiply(C::step(dwords, i), spread(x + i)));
        }
      }
      for (int v = 0; v < kVectors; ++v) wide[v] = _mm256_add_epi32(wide[v], widened(narrow[v]));
    }
  }
  for (int v = 0; v < kVectors; ++v) keep(sums + 8 * v, wide[v]);
}

// Codes of a chunk to panels of 16 outputs: [panel][rows * steps][16] dwords.
template <int kBits>
void unpack(const uint32_t* codes, int64_t width, int64_t rows, int32_t* to) {
  using C = Codes<kBits>;
  const int64_t panel = rows * C::kSteps * 16;
  for (int64_t r = 0; r < rows; ++r, codes += width, to += C::kSteps * 16)
    for (int64_t o = 0; o < width; o += 16) {
      int32_t* const at = to + o / 16 * panel;
      const Vec first = load(codes + o), second = load(codes + o + 8);
      for (int i = 0; i < C::kSteps; ++i) {
        keep(at + 16 * i, C::step(first, i));
        keep(at + 16 * i + 8, C::step(second, i));
      }
    }
}

// Where a block fetches from with each step; the same place over and over where there is nothing to fetch.
struct Ahead {
  const char* at;
  int64_t step;
};

// kRows rows of x (at x, x + stride, ...; dwords) times a panel: sums[row * 64 + 0 .. 15] +=.
template <int kBits, int kRows>
void block(const int32_t* codes, int64_t steps, const int32_t* x, int64_t stride, int32_t* sums, Ahead ahead) {
  using C = Codes<kBits>;
  Vec sum[kRows][2];
  if (C::kAdds == 0) {
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < 2; ++v) sum[i][v] = load(sums + i * kTile + 8 * v);
    for (int64_t s = 0; s < steps; ++s) {
      const Vec first = load(codes + 16 * s), second = load(codes + 16 * s + 8);
      fetch(ahead.at);
      ahead.at += ahead.step;
      for (int i = 0; i < kRows; ++i) {
        const Vec value = spread(x + i * stride + s);
        sum[i][0] = add32(sum[i][0], C::multiply(first, value));
        sum[i][1] = add32(sum[i][1], C::multiply(second, value));
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < 2; ++v) keep(sums + i * kTile + 8 * v, sum[i][v]);
    return;
  }
  for (int64_t s = 0; s < steps;) {
    const int64_t end = std::min<int64_t>(s + C::kAdds, steps);
    for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (; s < end; ++s) {
      const Vec first = load(codes + 16 * s), second = load(codes + 16 * s + 8);
      fetch(ahead.at);
      ahead.at += ahead.step;
      for (int i = 0; i < kRows; ++i) {
        const Vec value = spread(x + i * stride + s);
        sum[i][0] = add16(sum[i][0], C::multiply(first, value));
        sum[i][1] = add16(sum[i][1], C::multiply(second, value));
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < 2; ++v) {
        int32_t* const at = sums + i * kTile + 8 * v;
        keep(at, _mm256_add_epi32(load(at), widened(sum[i][v])));
      }
  }
}

template <int kBits>
void blocks(int64_t rows, const int32_t* codes, int64_t steps, const int32_t* x, int64_t stride, int32_t* sums,
            Ahead ahead) {
  switch (rows) {
    case 1: return block<kBits, 1>(codes, steps, x, stride, sums, ahead);
    case 2: return block<kBits, 2>(codes, steps, x, stride, sums, ahead);
    case 3: return block<kBits, 3>(codes, steps, x, stride, sums, ahead);
    case 4: return block<kBits, 4>(codes, steps, x, stride, sums, ahead);
    case 5: return block<kBits, 5>(codes, steps, x, stride, sums, ahead);
    default: return block<kBits, 6>(codes, steps, x, stride, sums, ahead);
  }
}

template <int kBits>
void one_row_of(int64_t width, const uint32_t* codes, int64_t rows, const int32_t* x, int32_t* sums) {
  switch (width) {
    case 16: return one_row<kBits, 2>(codes, width, rows, x, sums);
    case 32: return one_row<kBits, 4>(codes, width, rows, x, sums);
    case 48: return one_row<kBits, 6>(codes, width, rows, x, sums);
    default: return one_row<kBits, 8>(codes, width, rows, x, sums);
  }
}

// --- a span's sums to fp32 ---

// Scales and stored zero points (2^(bits-1) included) of a tile's group.
struct Group {
  alignas(64) float scale[kTile];
  alignas(64) int32_t zero[kTile];
};

void read_group(const Shape& shape, const Tile& tile, int64_t g, Group& group) {
  const char* const scale = tile.scale + g * tile.scale_step;
  for (int64_t o = 0; o < tile.width; o += 8) {
    __m256 values;
    switch (shape.weight->scale_dtype) {
      case QD_FP32: values = _mm256_loadu_ps(reinterpret_cast<const float*>(scale) + o); break;
      case QD_FP16: values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scale + 2 * o))); break;
      default:
        values = _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scale + 2 * o))), 16));
    }
    _mm256_store_ps(group.scale + o, values);
  }
  const uint8_t* const zero = tile.zero ? tile.zero + g * tile.zero_step : nullptr;
  if (zero == nullptr) {
    for (int64_t o = 0; o < tile.width; ++o) group.zero[o] = shape.offset;
  } else if (tile.zero_step == tile.width) {
    for (int64_t o = 0; o < tile.width; ++o) group.zero[o] = zero[o];
  } else {
    const int64_t half = tile.width / 2;
    for (int64_t o = 0; o < half; ++o) {
      group.zero[o] = zero[o] & 15;
      group.zero[o + half] = zero[o] >> 4;
    }
  }
}

// out += scale * (sums - zero * total - x_zero * ones), and sums = 0.
void finish(const Group& group, int64_t width, int32_t total, int32_t x_zero, const int32_t* ones, int32_t* sums,
            float* out) {
  const Vec all = _mm256_set1_epi32(total), shift = _mm256_set1_epi32(x_zero);
  for (int64_t o = 0; o < width; o += 8) {
    Vec sum = _mm256_sub_epi32(load(sums + o), _mm256_mullo_epi32(load(group.zero + o), all));
    if (ones) sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(load(ones + o), shift));
    const __m256 y = _mm256_fmadd_ps(_mm256_load_ps(group.scale + o), _mm256_cvtepi32_ps(sum), _mm256_load_ps(out + o));
    _mm256_store_ps(out + o, y);
    keep(sums + o, _mm256_setzero_si256());
  }
}

// --- a tile ---

// Dword rows of a chunk. Of many rows of x, unpacked panels (steps * 16 dwords a row) must stay in the first cache one
// by one; of few, memory sets the pace, and all of a chunk and of the next one are kept there.
constexpr int64_t kFewRows = 16, kShort = 32;
constexpr int64_t chunk_rows(int32_t slot_bits) { return slot_bits == 8 ? 128 : slot_bits == 5 ? 96 : 64; }

int32_t steps_of(const Shape& shape) { return shape.slot_bits == 8 ? 2 : shape.steps; }

Order order(int32_t slot_bits) { return slot_bits == 8 ? kWords : kBytes; }

struct Scratch {
  int32_t* sums;      // [rows][kTile]
  int32_t* ones;      // [kTile]
  int32_t* unpacked;  // a chunk's panels
};

size_t scratch(const Shape& shape, int64_t rows) {
  return 4 * static_cast<size_t>((rows + 1) * kTile + chunk_rows(shape.slot_bits) * steps_of(shape) * kTile);
}

// Dwords of unpacked codes an output up to which all panels of a span stay in the first cache together.
constexpr int64_t kTogether = 64;

template <int kBits>
struct Product {
  static constexpr int64_t kSteps = Codes<kBits>::kSteps;
  const Shape& shape;
  const Rows& x;
  const int64_t begin, m;
  float* const out;
  const int64_t ld;
  const Scratch work;
  const Tile tile;
  const int64_t stride = x.stride / 4;
  const int32_t* const rows = reinterpret_cast<const int32_t*>(x.bytes(begin));
  const int32_t* const ones = reinterpret_cast<const int32_t*>(x.ones);
  Group group{};

  void run() {
    memset(work.sums, 0, static_cast<size_t>(m * kTile) * 4);
    for (int64_t i = 0; i < m; ++i) memset(out + i * ld, 0, static_cast<size_t>(tile.width) * 4);
    int64_t number = 0;
    for (int64_t g = 0; g < shape.groups; ++g) {
      read_group(shape, tile, g, group);
      const int64_t end = (g + 1) * shape.group_rows;
      for (int64_t r = g * shape.group_rows; r < end; r += shape.span_rows, ++number)
        span(number, r, std::min(r + shape.span_rows, end));
    }
  }

  void span(int64_t number, int64_t first, int64_t last) {
    if (ones) memset(work.ones, 0, kTile * 4);
    if (m > 1 && (last - first) * kSteps <= kTogether) return short_span(number, first, last - first);
    const int64_t chunk = m > kFewRows || (m == 1 && !ones) ? chunk_rows(kBits) : kShort;
    for (int64_t r = first; r < last; r += chunk) {
      const int64_t count = std::min(chunk, last - r);
      if (m == 1) {
        const uint32_t* const codes = tile.codes + r * tile.width;
        one_row_of<kBits>(tile.width, codes, count, rows + r * kSteps, work.sums);
        if (ones) one_row_of<kBits>(tile.width, codes, count, ones + r * kSteps, work.ones);
        continue;
      }
      unpack<kBits>(tile.codes + r * tile.width, tile.width, count, work.unpacked);
      // One panel after another: each stays in the first cache for all rows of x.
      for (int64_t o = 0; o < tile.width; o += 16) {
        add_ones(r, count, o);
        for (int64_t i = 0; i < m; i += 6) add_rows(r, count, o, i, work.sums + i * kTile);
      }
    }
    for (int64_t i = 0; i < m; ++i) finish_row(number, i, work.sums + i * kTile);
  }

  // All panels of a few rows of x, whose sums then need not leave the first cache.
  void short_span(int64_t number, int64_t r, int64_t count) {
    unpack<kBits>(tile.codes + r * tile.width, tile.width, count, work.unpacked);
    for (int64_t o = 0; o < tile.width; o += 16) add_ones(r, count, o);
    for (int64_t i = 0; i < m; i += 6) {
      for (int64_t o = 0; o < tile.width; o += 16) add_rows(r, count, o, i, work.sums);
      for (int64_t j = i; j < std::min(i + 6, m); ++j) finish_row(number, j, work.sums + (j - i) * kTile);
    }
  }

  // Outputs o .. o + 15 of a chunk times the rows i .. i + 5.
  void add_rows(int64_t r, int64_t count, int64_t o, int64_t i, int32_t* sums) const {
    const int64_t steps = count * kSteps;
    const int32_t* const panel = work.unpacked + o * steps;
    Ahead ahead{reinterpret_cast<const char*>(panel), 0};
    // The first rows' turn is to fetch the panel's share of the next chunk.
    if (i == 0) ahead = {reinterpret_cast<const char*>(tile.codes + (r + count) * tile.width + count * o), 64 / kSteps};
    blocks<kBits>(std::min<int64_t>(6, m - i), panel, steps, rows + i * stride + r * kSteps, stride, sums + o, ahead);
  }

  void add_ones(int64_t r, int64_t count, int64_t o) const {
    if (!ones) return;
    const int64_t steps = count * kSteps;
    const int32_t* const panel = work.unpacked + o * steps;
    blocks<kBits>(1, panel, steps, ones + r * kSteps, stride, work.ones + o, {reinterpret_cast<const char*>(panel), 0});
  }

  void finish_row(int64_t number, int64_t i, int32_t* sums) const {
    finish(group, tile.width, x.sums[(begin + i) * shape.spans + number], x.zero ? x.zero[begin + i] : 0,
           ones ? work.ones : nullptr, sums, out + i * ld);
  }
};

template <int kBits>
void tile_of(const Shape& shape, const Rows& x, int64_t begin, int64_t end, int64_t index, float* out, int64_t ld,
             const Scratch& work) {
  Product<kBits>{shape, x, begin, end - begin, out, ld, work, Tile(*shape.weight, shape, index)}.run();
}

void tile(const Shape& shape, const Rows& x, int64_t begin, int64_t end, int64_t index, float* out, int64_t ld,
          void* memory) {
  int32_t* const sums = static_cast<int32_t*>(memory);
  const Scratch work{sums, sums + (end - begin) * kTile, sums + (end - begin + 1) * kTile};
  switch (shape.slot_bits) {
    case 2: return tile_of<2>(shape, x, begin, end, index, out, ld, work);
    case 3: return tile_of<3>(shape, x, begin, end, index, out, ld, work);
    case 4: return tile_of<4>(shape, x, begin, end, index, out, ld, work);
    case 5: return tile_of<5>(shape, x, begin, end, index, out, ld, work);
    default: return tile_of<8>(shape, x, begin, end, index, out, ld, work);
  }
}

// --- rows of x and y ---

template <int32_t kDtype>
QD_INLINE __m256 read(const void* x, int64_t i) {
  if (kDtype == QD_FP32) return _mm256_loadu_ps(static_cast<const float*>(x) + i);
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(x) + i));
  if (kDtype == QD_FP16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// The last columns, fewer than 8: in a buffer of their own, filled up with `fill`.
struct Tail {
  alignas(32) float values[8];

  Tail(const void* x, int32_t dtype, int64_t begin, int64_t end, float fill) {
    for (int64_t i = 0; i < 8; ++i) values[i] = begin + i < end ? load_float(x, begin + i, dtype) : fill;
  }
};

template <int32_t kDtype>
void range_of(const void* x, int64_t k, float* smallest, float* largest) {
  // Of a NaN and a number, min and max return the second: numbers go first, NaNs are found apart.
  __m256 low = _mm256_set1_ps(load_float(x, 0, kDtype)), high = low, low2 = low, high2 = low, nan = _mm256_cmp_ps(low, low, _CMP_UNORD_Q);
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    const __m256 a = read<kDtype>(x, i), b = read<kDtype>(x, i + 8);
    low = _mm256_min_ps(a, low);
    high = _mm256_max_ps(a, high);
    low2 = _mm256_min_ps(b, low2);
    high2 = _mm256_max_ps(b, high2);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
  }
  for (; i < k; i += 8) {
    const Tail tail(x, kDtype, i, k, load_float(x, 0, kDtype));
    const __m256 a = _mm256_load_ps(tail.values);
    low = _mm256_min_ps(a, low);
    high = _mm256_max_ps(a, high);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  alignas(32) float lows[8], highs[8];
  _mm256_store_ps(lows, _mm256_min_ps(low, low2));
  _mm256_store_ps(highs, _mm256_max_ps(high, high2));
  *smallest = *std::min_element(lows, lows + 8);
  *largest = *std::max_element(highs, highs + 8);
  if (_mm256_movemask_ps(nan)) *smallest = *largest = float_of_bits(0x7fc00000);
}

void range(const void* x, int32_t dtype, int64_t k, float* smallest, float* largest) {
  switch (dtype) {
    case QD_BF16: return range_of<QD_BF16>(x, k, smallest, largest);
    case QD_FP16: return range_of<QD_FP16>(x, k, smallest, largest);
    default: return range_of<QD_FP32>(x, k, smallest, largest);
  }
}

struct Rounding {
  __m256 scale, zero, low, high;
  Vec shift;

  explicit Rounding(const Quantizer& by)
      : scale(_mm256_set1_ps(by.scale)), zero(_mm256_set1_ps(by.zero)), low(_mm256_set1_ps(by.low)),
        high(_mm256_set1_ps(by.high)), shift(_mm256_set1_epi32(by.shift)) {}

  // The clamp is at integers, so it may come before the rounding, which then cannot overflow.
  QD_INLINE Vec operator()(__m256 x) const {
    const __m256 scaled = _mm256_add_ps(_mm256_div_ps(x, scale), zero);
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(scaled, low), high);
    return _mm256_sub_epi32(
        _mm256_cvttps_epi32(_mm256_round_ps(inside, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)), shift);
  }
};

template <int32_t kDtype>
bool quantize_as(const void* x, int64_t k, const Quantizer& by, int16_t* codes) {
  const Rounding rounded(by);
  __m256 nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    const __m256 a = read<kDtype>(x, i), b = read<kDtype>(x, i + 8);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
    // packs takes 4 of a, 4 of b, 4 of a, 4 of b
    const Vec words = _mm256_packs_epi32(rounded(a), rounded(b));
    keep(codes + i, _mm256_permute4x64_epi64(words, 0xd8));
  }
  for (; i < k; i += 8) {
    const Tail tail(x, kDtype, i, k, 0);
    const __m256 a = _mm256_load_ps(tail.values);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    alignas(32) int32_t last[8];
    keep(last, rounded(a));
    for (int64_t c = 0; c < 8 && i + c < k; ++c) codes[i + c] = static_cast<int16_t>(last[c]);
  }
  return _mm256_movemask_ps(nan) != 0;
}

bool quantize(const void* x, int32_t dtype, int64_t k, const Quantizer& by, int16_t* codes) {
  switch (dtype) {
    case QD_BF16: return quantize_as<QD_BF16>(x, k, by, codes);
    case QD_FP16: return quantize_as<QD_FP16>(x, k, by, codes);
    default: return quantize_as<QD_FP32>(x, k, by, codes);
  }
}

// fp32 to bf16 in the low words of its dwords.
QD_INLINE Vec bf16(__m256 value) {
  const Vec bits = _mm256_castps_si256(value);
  const Vec even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Vec rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
  const Vec nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

template <int32_t kDtype>
QD_INLINE void write(__m256 value, void* y, int64_t o) {
  if (kDtype == QD_FP32) return _mm256_storeu_ps(static_cast<float*>(y) + o, value);
  __m128i* const to = reinterpret_cast<__m128i*>(static_cast<uint16_t*>(y) + o);
  if (kDtype == QD_FP16) return _mm_storeu_si128(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  const Vec dwords = bf16(value);
  _mm_storeu_si128(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(dwords, dwords), 0x08)));
}

template <int32_t kDtype>
void store_as(const float* values, int64_t count, float factor, const float* bias, void* y) {
  const __m256 by = _mm256_set1_ps(factor);
  int64_t o = 0;
  for (; o + 8 <= count; o += 8) {
    __m256 value = _mm256_mul_ps(_mm256_loadu_ps(values + o), by);
    if (bias) value = _mm256_add_ps(value, _mm256_loadu_ps(bias + o));
    write<kDtype>(value, y, o);
  }
  if (o == count) return;
  alignas(32) float last[8] = {};
  for (int64_t i = o; i < count; ++i) last[i - o] = bias ? values[i] * factor + bias[i] : values[i] * factor;
  alignas(32) char rounded[32];
  write<kDtype>(_mm256_load_ps(last), rounded, 0);
  constexpr int64_t kSize = kDtype == QD_FP32 ? 4 : 2;
  memcpy(static_cast<char*>(y) + o * kSize, rounded, static_cast<size_t>((count - o) * kSize));
}

void store(const float* values, int64_t count, float factor, const float* bias, void* y, int32_t dtype) {
  switch (dtype) {
    case QD_BF16: return store_as<QD_BF16>(values, count, factor, bias, y);
    case QD_FP16: return store_as<QD_FP16>(values, count, factor, bias, y);
    default: return store_as<QD_FP32>(values, count, factor, bias, y);
  }
}

}  // namespace

const Isa& avx2() {
  static const Isa isa{order, scratch, tile, range, quantize, store};
  return isa;
}

}  // namespace int8
}  // namespace qd

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
