// Dense bf16 weights with AVX-512: vdpbf16ps takes rows of x and of weights as they lie. One row comes at the speed of
// memory.
#if defined(__x86_64__) || defined(__i386__)
#include <string.h>

#include "dense.h"
#include "avx512_base.h"

namespace qd {
namespace dense {
namespace {

constexpr int64_t kStep = 32;  // columns of a register
constexpr int64_t kPanel = 48;
constexpr int kOutputs = 4, kRows = 4;

int64_t padded(int64_t k) { return ceil_div(k, kStep) * kStep; }

size_t prepared(int64_t k, int64_t m) { return static_cast<size_t>(padded(k) * m) * sizeof(uint16_t); }

// Rows filled up with zeros to whole registers.
void prepare(int64_t k, const uint16_t* x, int64_t m, int64_t stride, void* data) {
  const int64_t wide = padded(k);
  for (int64_t i = 0; i < m; ++i) {
    uint16_t* to = static_cast<uint16_t*>(data) + i * wide;
    memcpy(to, x + i * stride, static_cast<size_t>(k) * sizeof(uint16_t));
    memset(to + k, 0, static_cast<size_t>(wide - k) * sizeof(uint16_t));
  }
}

// Sums of lanes: out[o] is that of sum[o].
template <int kN>
QD_INLINE void across(const __m512 (&sum)[kN], float* out) {
  if (kN == kOutputs) {
    const __m512 first = _mm512_add_ps(_mm512_unpacklo_ps(sum[0], sum[1 % kN]), _mm512_unpackhi_ps(sum[0], sum[1 % kN]));
    const __m512 second = _mm512_add_ps(_mm512_unpacklo_ps(sum[2 % kN], sum[3 % kN]), _mm512_unpackhi_ps(sum[2 % kN], sum[3 % kN]));
    // in each quarter of a register what is left of the four sums
    const __m512 four = _mm512_add_ps(_mm512_shuffle_ps(first, second, 0x44), _mm512_shuffle_ps(first, second, 0xee));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
    return;
  }
  for (int o = 0; o < kN; ++o) out[o] = _mm512_reduce_add_ps(sum[o]);
}

template <int kM, int kN, bool kAhead>
QD_INLINE void products(const Weight& weight, int64_t first, const uint16_t* x, int64_t wide, float* out) {
  __m512 sum[kM][kN];
  for (int i = 0; i < kM; ++i)
    for (int o = 0; o < kN; ++o) sum[i][o] = _mm512_setzero_ps();
  const uint16_t* w = weight.data + first * weight.stride;
  int64_t c = 0;
  for (; c + kStep <= weight.k; c += kStep) {
    __m512i values[kM];
    for (int i = 0; i < kM; ++i) values[i] = _mm512_loadu_si512(x + i * wide + c);
    for (int o = 0; o < kN; ++o) {
      const uint16_t* at = w + o * weight.stride + c;
      const __m512i row = kAhead ? load_ahead((const uint32_t*)at) : _mm512_loadu_si512(at);
      for (int i = 0; i < kM; ++i) sum[i][o] = dot_bf16(sum[i][o], values[i], row);
    }
  }
  if (c < weight.k) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << (weight.k - c)) - 1);
    for (int o = 0; o < kN; ++o) {
      const __m512i row = _mm512_maskz_loadu_epi16(mask, w + o * weight.stride + c);
      for (int i = 0; i < kM; ++i) sum[i][o] = dot_bf16(sum[i][o], _mm512_loadu_si512(x + i * wide + c), row);
    }
  }
  for (int i = 0; i < kM; ++i) across(sum[i], out + i * kTile);
}

template <int kN>
void outputs(const Weight& weight, int64_t first, const uint16_t* x, int64_t m, float* out) {
  const int64_t wide = padded(weight.k);
  int64_t i = 0;
  if (m >= kRows) {
    products<kRows, kN, true>(weight, first, x, wide, out);
    for (i = kRows; i + kRows <= m; i += kRows)
      products<kRows, kN, false>(weight, first, x + i * wide, wide, out + i * kTile);
  }
  for (; i < m; ++i)
    if (i == 0)
      products<1, kN, true>(weight, first, x, wide, out);
    else
      products<1, kN, false>(weight, first, x + i * wide, wide, out + i * kTile);
}

void tile(const Weight& weight, const void* data, int64_t m, int64_t first, int64_t count, float* out) {
  const auto* x = static_cast<const uint16_t*>(data);
  int64_t o = 0;
  for (; o + kOutputs <= count; o += kOutputs) outputs<kOutputs>(weight, first + o, x, m, out + o);
  for (; o < count; ++o) outputs<1>(weight, first + o, x, m, out + o);
}

}  // namespace

const Isa& avx512() {
  static const Isa isa{kPanel, prepared, prepare, tile};
  return isa;
}

}  // namespace dense
}  // namespace qd
QD_AVX512_END
#endif
