// Dense bf16 weights with AVX2: a bf16 is the upper half of an fp32, so that even and odd columns become fp32 by a shift
// and by a mask. Sums are in fp32, along K, and added across at the end of each block of columns. One row of x is a
// matter of memory: weights are read in the order in which they lie, and asked for ahead of time.
#include "dense.h"

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
namespace dense {
namespace {

constexpr int64_t kStep = 16;     // columns taken at once: 8 even ones, 8 odd ones
constexpr int64_t kBlock = 1024;  // columns of a block: 4 rows of weights and 3 of x fit the first cache
constexpr int64_t kPanel = 48;    // rows of x that fit the second cache for a block
constexpr int kOutputs = 4, kRows = 3;
constexpr int64_t kAhead = 512;  // bytes that are asked for before they are read

int64_t padded(int64_t k) { return ceil_div(k, kStep) * kStep; }

size_t prepared(int64_t k, int64_t m) { return static_cast<size_t>(padded(k) * m) * sizeof(float); }

// Each row as fp32, 8 even columns and then 8 odd ones of every 16.
void prepare(int64_t k, const uint16_t* x, int64_t m, int64_t stride, void* data) {
  const int64_t wide = padded(k);
  for (int64_t i = 0; i < m; ++i) {
    const uint16_t* from = x + i * stride;
    float* to = static_cast<float*>(data) + i * wide;
    for (int64_t c = 0; c < wide; c += kStep)
      for (int64_t j = 0; j < kStep; ++j) {
        const int64_t column = c + (j < 8 ? 2 * j : 2 * (j - 8) + 1);
        to[c + j] = column < k ? float_of_bf16(from[column]) : 0.f;
      }
  }
}

QD_INLINE __m256i load(const uint16_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
QD_INLINE __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
QD_INLINE __m256 odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
}

QD_INLINE float across(__m256 v) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}

// One row of x times one of weights, over `steps` times 16 columns.
QD_INLINE __m256 product(const uint16_t* w, const float* x, int64_t steps) {
  constexpr int kSums = 8;
  __m256 sum[kSums];
  for (auto& s : sum) s = _mm256_setzero_ps();
  const auto add = [&](int64_t step, int s) __attribute__((always_inline)) {
    const __m256i pairs = load(w + step * kStep);
    sum[s] = _mm256_fmadd_ps(even(pairs), _mm256_loadu_ps(x + step * kStep), sum[s]);
    sum[s + 1] = _mm256_fmadd_ps(odd(pairs), _mm256_loadu_ps(x + step * kStep + 8), sum[s + 1]);
  };
  int64_t step = 0;
  for (; step + kSums / 2 <= steps; step += kSums / 2)
    for (int s = 0; s < kSums; s += 2) {
      const auto* ahead = reinterpret_cast<const char*>(w + (step + s / 2) * kStep) + kAhead;
      if (s % 4 == 0) _mm_prefetch(ahead, _MM_HINT_T0);
      add(step + s / 2, s);
    }
  for (; step < steps; ++step) add(step, 0);
  for (int width = kSums / 2; width > 0; width /= 2)
    for (int s = 0; s < width; ++s) sum[s] = _mm256_add_ps(sum[s], sum[s + width]);
  return sum[0];
}

// What is left of a row after its last 16 columns, with zeros behind it.
struct Tail {
  uint16_t values[kStep] = {};
  Tail() = default;
  Tail(const uint16_t* from, int64_t count) { memcpy(values, from, static_cast<size_t>(count) * sizeof(uint16_t)); }
};

void one_row(const Weight& weight, const float* x, int64_t first, int64_t count, float* out) {
  const int64_t steps = weight.k / kStep, left = weight.k % kStep;
  for (int64_t o = 0; o < count; ++o) {
    const uint16_t* w = weight.data + (first + o) * weight.stride;
    out[o] = across(product(w, x, steps));
    if (left) out[o] += across(product(Tail(w + steps * kStep, left).values, x + steps * kStep, 1));
  }
}

// out[i][o] += rows of x times rows of weights over `steps` times 16 columns.
template <int kM, int kN>
QD_INLINE void products(const uint16_t* const* w, const float* x, int64_t wide, int64_t steps, float* out) {
  __m256 sum[kM][kN];
  for (int i = 0; i < kM; ++i)
    for (int o = 0; o < kN; ++o) sum[i][o] = _mm256_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
    const float* at = x + step * kStep;
    __m256 values[kM];
    for (int i = 0; i < kM; ++i) values[i] = _mm256_loadu_ps(at + i * wide);
    for (int o = 0; o < kN; ++o) {
      const __m256 weight = even(load(w[o] + step * kStep));
      for (int i = 0; i < kM; ++i) sum[i][o] = _mm256_fmadd_ps(weight, values[i], sum[i][o]);
    }
    for (int i = 0; i < kM; ++i) values[i] = _mm256_loadu_ps(at + i * wide + 8);
    for (int o = 0; o < kN; ++o) {
      const __m256 weight = odd(load(w[o] + step * kStep));
      for (int i = 0; i < kM; ++i) sum[i][o] = _mm256_fmadd_ps(weight, values[i], sum[i][o]);
    }
  }
  for (int i = 0; i < kM; ++i)
    for (int o = 0; o < kN; ++o) out[i * kTile + o] += across(sum[i][o]);
}

template <int kN>
QD_INLINE void all_rows(const uint16_t* const* w, const float* x, int64_t wide, int64_t m, int64_t steps, float* out) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) products<kRows, kN>(w, x + i * wide, wide, steps, out + i * kTile);
  if (m - i == 2) products<2, kN>(w, x + i * wide, wide, steps, out + i * kTile);
  if (m - i == 1) products<1, kN>(w, x + i * wide, wide, steps, out + i * kTile);
}

// Outputs of a block of columns; what is left of less than 16 columns is copied, so that nothing beyond a row is read.
template <int kN>
void outputs(const Weight& weight, int64_t first, const float* x, int64_t m, int64_t begin, int64_t end, float* out) {
  const int64_t wide = padded(weight.k), steps = (end - begin) / kStep;
  const uint16_t* w[kN];
  for (int o = 0; o < kN; ++o) w[o] = weight.data + (first + o) * weight.stride + begin;
  all_rows<kN>(w, x + begin, wide, m, steps, out);
  const int64_t left = end - begin - steps * kStep;
  if (left == 0) return;
  Tail tail[kN];
  const uint16_t* tails[kN];
  for (int o = 0; o < kN; ++o) {
    tail[o] = Tail(w[o] + steps * kStep, left);
    tails[o] = tail[o].values;
  }
  all_rows<kN>(tails, x + begin + steps * kStep, wide, m, 1, out);
}

void tile(const Weight& weight, const void* data, int64_t m, int64_t first, int64_t count, float* out) {
  const auto* x = static_cast<const float*>(data);
  if (m == 1) return one_row(weight, x, first, count, out);
  memset(out, 0, static_cast<size_t>(m * kTile) * sizeof(float));
  for (int64_t begin = 0; begin < weight.k; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, weight.k);
    int64_t o = 0;
    for (; o + kOutputs <= count; o += kOutputs) outputs<kOutputs>(weight, first + o, x, m, begin, end, out + o);
    for (; o < count; ++o) outputs<1>(weight, first + o, x, m, begin, end, out + o);
  }
}

}  // namespace

const Isa& avx2() {
  static const Isa isa{kPanel, prepared, prepare, tile};
  return isa;
}

}  // namespace dense
}  // namespace qd

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
