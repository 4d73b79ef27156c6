// Kernels for AVX2 with FMA and F16C. Everything is computed in fp32.
#include <math.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>

// After all headers: what they define inline must not be compiled for a processor that may not be there.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define QD_INLINE __attribute__((always_inline)) inline

namespace qd {
namespace {

constexpr int64_t kPanel = 264;   // rows of a Work: x of 256 columns beside a decoded block stays in a cache of 512 KB
constexpr int64_t kHeight = 6;    // rows of x that lie together: with 16 outputs 12 sums, of 16 registers
constexpr int64_t kBlock = 256;   // columns decoded at once: 64 KB of a tile
// Up to which decoding anew for every six rows costs less than writing it down; of fp8, which takes more to decode.
constexpr int64_t kFewRows = 12, kFewRowsOfFp8 = 6;
constexpr int64_t kAhead = 1024;  // bytes that are fetched ahead within a tile

enum Mode { kFew, kMany };

int64_t block_rows(const Shape& shape) { return std::max<int64_t>(kBlock / shape.dword_columns, 1); }

// Work of few rows: a flag whether x is finite, the sums of its spans, [m / height][spans][height], and x itself,
// [m / height][padded_k][height] (for fp8 [padded_k / 2][height][2]). With a NaN or an infinity in x sums of integers
// that are shifted would lose its sign: then x is prepared and multiplied as of many rows.
struct Few {
  int64_t height;
  const float *x, *sums;
};

struct Many {
  int64_t m, height;
  const float* x;
};

#include "avx2_values.inl"
#include "avx2_few.inl"
#include "avx2_many.inl"

int64_t height_of(const Work& work) {
  return work.mode == kMany ? kHeight : ceil_div(work.m, ceil_div(work.m, kHeight));
}

size_t sums_bytes(const Shape& shape, int64_t m) {
  return static_cast<size_t>(ceil_div(m * shape.spans() * 4, 64) * 64);
}

float* x_of(const Shape& shape, const Work& work) {
  return reinterpret_cast<float*>(work.data + (work.mode == kMany ? 0 : 64 + sums_bytes(shape, work.m)));
}

Work plan(const Shape& shape, int64_t m, int32_t dtype) {
  Work work{};
  work.m = m;
  work.dtype = dtype;
  work.mode = m <= (shape.format == QD_FP8 ? kFewRowsOfFp8 : kFewRows) ? kFew : kMany;
  work.step = work.mode == kFew ? m : 4 * kHeight;
  work.bytes = static_cast<size_t>(m * shape.padded_k() * 4) + (work.mode == kFew ? 64 + sums_bytes(shape, m) : 0);
  work.scratch = static_cast<size_t>(block_rows(shape) * shape.dword_columns * kTile * 4);
  return work;
}

// A row into its place among `height` others.
void spread(const float* row, int64_t count, int64_t height, float* out) {
  if (height == 1) {
    memcpy(out, row, static_cast<size_t>(count) * 4);
    return;
  }
  for (int64_t p = 0; p < count; ++p) out[p * height] = row[p];
}

void spread_pairs(const float* row, int64_t count, int64_t height, float* out) {
  for (int64_t p = 0; p < count; p += 2) memcpy(out + p * height, row + p, 8);
}

// The factors of a dword's columns, 2^-excess.
template <class Code, int... C>
const float* factors(std::integer_sequence<int, C...>) {
  static const float made[] = {1.0f / static_cast<float>(1 << Code::excess(C))...};
  return made;
}

template <class Code>
void scale_columns(float* row, int64_t count) {
  const float* const factor = factors<Code>(std::make_integer_sequence<int, Code::kColumns>());
  for (int64_t p = 0; p < count; p += Code::kColumns)
    for (int c = 0; c < Code::kColumns; ++c) row[p + c] *= factor[c];
}

float sum_of(const float* values, int64_t count) {
  __m256 eight = _mm256_setzero_ps();
  int64_t p = 0;
  for (; p + 8 <= count; p += 8) eight = _mm256_add_ps(eight, _mm256_loadu_ps(values + p));
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, eight);
  float sum = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  for (; p < count; ++p) sum += values[p];
  return sum;
}

// Calls visit with the kernels of a format: of few rows, of many, and the zero point where none is stored.
template <class Visitor>
void with_format(const Shape& shape, const Visitor& visit) {
  switch (shape.format == QD_INT ? shape.slot_bits : -shape.format) {
    case 2: return visit(Int<2>());
    case 3: return visit(Int<3>());
    case 4: return visit(Int<4>());
    case 5: return visit(Int<5>());
    case 8: return visit(Int<8>());
    case -QD_FP4: return visit(Fp4());
    default: return visit(Fp8());
  }
}

struct ScaleColumns {
  float* row;
  int64_t count;
  template <class Code>
  void operator()(Code) const {
    scale_columns<Code>(row, count);
  }
  void operator()(Fp8) const {}
};

// Returns whether the row is finite.
bool prepare_few(const Shape& shape, const Work& work, int64_t i, float* row) {
  const int64_t height = height_of(work), first = i / height * height, rows = std::min(height, work.m - first);
  float* const sums = reinterpret_cast<float*>(work.data + 64) + first * shape.spans() + (i - first);
  float* const out = x_of(shape, work) + first * shape.padded_k();
  float check = 0.0f;
  for (int64_t g = 0, s = 0; g < shape.groups; ++g)
    for (int64_t r = 0; r < shape.group_rows; r += shape.span_rows, ++s) {
      const int64_t count = std::min(shape.span_rows, shape.group_rows - r) * shape.dword_columns;
      const float sum = sum_of(row + (g * shape.group_rows + r) * shape.dword_columns, count);
      sums[s * rows] = sum;
      check += sum * 0.0f;
    }
  if (shape.format == QD_FP8) {
    spread_pairs(row, shape.padded_k(), rows, out + 2 * (i - first));
  } else {
    with_format(shape, ScaleColumns{row, shape.padded_k()});
    spread(row, shape.padded_k(), rows, out + (i - first));
  }
  return check == 0.0f;
}

void prepare(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Work& work) {
  const int64_t wide = ceil_div(shape.padded_k(), 16) * 16;
  float* const row = static_cast<float*>(thread_memory(kUseRow, static_cast<size_t>(wide + shape.k) * 4));
  bool few = work.mode == kFew;
  for (int64_t i = begin; i < end && few; ++i) {
    expand(shape, x.row(i), x.dtype, row, row + wide);
    few = prepare_few(shape, work, i, row);
  }
  if (work.mode == kFew) *work.data = few;
  if (few) return;
  const int64_t height = height_of(work);
  for (int64_t i = begin; i < end; ++i) {
    expand(shape, x.row(i), x.dtype, row, row + wide);
    const int64_t first = i / height * height;
    spread(row, shape.padded_k(), std::min(height, work.m - first),
           x_of(shape, work) + first * shape.padded_k() + (i - first));
  }
}

struct Tiling {
  const qd_weight& weight;
  const Shape& shape;
  const Work& work;
  int64_t begin, end, t;
  float* out;
  int64_t ld;
  void* scratch;
  Next next;

  template <class FewKernel, class Decode>
  void run(float zero) const {
    const float* const x = x_of(shape, work);
    if (work.mode == kFew && *work.data) {
      const Few few{height_of(work), x, reinterpret_cast<const float*>(work.data + 64)};
      few_rows<FewKernel>(weight, shape, few, work.m, t, zero, out, ld, next);
    } else {
      many_rows<Decode>(weight, shape, {work.m, height_of(work), x}, begin, end, t, zero, out, ld,
                        static_cast<float*>(scratch));
    }
  }
  template <class Code>
  void operator()(Code) const {
    run<Integers<Code>, DecodeIntegers<Code>>(Code::zero());
  }
  void operator()(Fp8) const { run<Fp8, DecodeFp8>(0.0f); }
};

void tile(const qd_weight& weight, const Shape& shape, const Work& work, int64_t begin, int64_t end, int64_t t,
          float* out, int64_t ld, void* scratch, const Next& next) {
  with_format(shape, Tiling{weight, shape, work, begin, end, t, out, ld, scratch, next});
}

}  // namespace

const Isa& avx2() {
  static const Isa isa{kPanel, INT64_MAX, plan, prepare, tile, store};
  return isa;
}

}  // namespace qd

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // x86
