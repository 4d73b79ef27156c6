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

#if defined(__x86_64__)
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

#include "int8_avx2_products.inl"

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

#include "int8_avx2_rows.inl"

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
