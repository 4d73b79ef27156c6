// Activations of gated experts: plain loops, compiled once for any processor and once for AVX2. Nothing is contracted
// to fused multiply-adds (flags.txt), so both give the same bits.
#include "gates.h"

#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
// Nobody looks at the floating-point flags, and loops with conditions become vectors.
#pragma GCC optimize("no-trapping-math")
#endif
#if defined(__GNUC__)
#define QD_INLINE inline __attribute__((always_inline))
#else
#define QD_INLINE inline
#endif
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define QD_AVX2_COPY __attribute__((target("avx2")))
#endif

namespace qd {
namespace {

QD_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

QD_INLINE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Comparisons are written so that a NaN stays: it is not below, nor above.
QD_INLINE float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// The polynomial of Cephes' expf: error of about one in the last bit; 0 and inf outside of what fp32 has (subnormal
// results become 0, which no caller can tell from 1 + 0).
QD_INLINE float exp_of(float x) {
  const float y = clamp(x, -87.0f, 89.0f);
  const float shifted = y * 1.44269504088896341f + 12582912.0f;  // rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  float r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * r * r + r + 1.0f;
  // 2^n in two factors, for n = 128 is no exponent of one
  const int32_t exponent = static_cast<int32_t>(bits_of(shifted) - 0x4b400000u);
  const int32_t half = exponent >> 1;
  const float low = float_of(static_cast<uint32_t>(half + 127) << 23);
  const float high = float_of(static_cast<uint32_t>(exponent - half + 127) << 23);
  const float result = e * low * high;
  return x < -87.0f ? 0.0f : x != x ? x : result;
}

QD_INLINE float silu(float x) { return x / (1.0f + exp_of(-x)); }

// 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2u)), which does not cancel where tanh comes near -1.
QD_INLINE float gelu_tanh(float x) {
  return x / (1.0f + exp_of(-1.59576912160573073f * (x + 0.044715f * x * x * x)));
}

// The complementary error function of z >= 0: Chebyshev's fit of Numerical Recipes (erfcc), off by 1.2e-7 of the
// result, however small that is. 1 - erf(z) would cancel there.
QD_INLINE float erfc_of(float z) {
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  return t * exp_of(p - z * z);
}

QD_INLINE float gelu(float x) {
  const float tail = 0.5f * erfc_of(float_of(bits_of(x) & 0x7fffffffu) * 0.70710678118654752f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

QD_INLINE uint32_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return value != value ? 0x7fc0u : rounded;
}

// Nearest even by the processor's own additions: the value is put above a power of two whose last bit is the half's.
QD_INLINE uint32_t to_fp16(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const float absolute = float_of(magnitude);
  // below 2^-14: a multiple of 2^-24
  const uint32_t small = bits_of(absolute + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return result | sign;
}

QD_INLINE float from_fp16(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  // moved to fp32's exponent and scaled: exact, subnormals included
  const float scaled = float_of(rest << 13) * 5.192296858534828e+33f;  // 2^112
  const uint32_t special = 0x7f800000u | (rest << 13);
  return float_of((rest >= 0x7c00u ? special : bits_of(scaled)) | sign);
}

struct Bf16 {
  using Stored = uint16_t;
  static QD_INLINE Stored store(float x) { return static_cast<Stored>(to_bf16(x)); }
  static QD_INLINE float round(float x) { return float_of(to_bf16(x) << 16); }
};

struct Fp16 {
  using Stored = uint16_t;
  static QD_INLINE Stored store(float x) { return static_cast<Stored>(to_fp16(x)); }
  static QD_INLINE float round(float x) { return from_fp16(to_fp16(x)); }
};

struct Fp32 {
  using Stored = float;
  static QD_INLINE Stored store(float x) { return x; }
  static QD_INLINE float round(float x) { return x; }
};

template <int32_t activation>
QD_INLINE float activate(float x) {
  return activation == QD_SILU ? silu(x) : activation == QD_GELU ? gelu(x) : gelu_tanh(x);
}

template <int32_t activation, class Type>
QD_INLINE void gate_loop(float* __restrict gate, const float* __restrict up, int64_t count, void* hidden) {
  auto* __restrict out = static_cast<typename Type::Stored*>(hidden);
  for (int64_t i = 0; i < count; ++i) gate[i] = Type::round(activate<activation>(Type::round(gate[i])));
  if (up == nullptr) {
    for (int64_t i = 0; i < count; ++i) out[i] = Type::store(gate[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Type::store(gate[i] * Type::round(up[i]));
  }
}

template <class Type>
QD_INLINE void gate_as(int32_t activation, float* gate, const float* up, int64_t count, void* hidden) {
  if (activation == QD_SILU) {
    gate_loop<QD_SILU, Type>(gate, up, count, hidden);
  } else if (activation == QD_GELU) {
    gate_loop<QD_GELU, Type>(gate, up, count, hidden);
  } else {
    gate_loop<QD_GELU_TANH, Type>(gate, up, count, hidden);
  }
}

QD_INLINE void gate_any(int32_t activation, float* gate, const float* up, int64_t count, void* hidden, int32_t dtype) {
  if (dtype == QD_BF16) {
    gate_as<Bf16>(activation, gate, up, count, hidden);
  } else if (dtype == QD_FP16) {
    gate_as<Fp16>(activation, gate, up, count, hidden);
  } else {
    gate_as<Fp32>(activation, gate, up, count, hidden);
  }
}

#ifdef QD_AVX2_COPY
QD_AVX2_COPY void gate_avx2(int32_t activation, float* gate, const float* up, int64_t count, void* hidden,
                            int32_t dtype) {
  gate_any(activation, gate, up, count, hidden, dtype);
}
#endif

}  // namespace

void apply_gate(int32_t activation, float* gate, const float* up, int64_t count, void* hidden, int32_t dtype) {
#ifdef QD_AVX2_COPY
  if (qd_isa() >= QD_AVX2) return gate_avx2(activation, gate, up, count, hidden, dtype);
#endif
  gate_any(activation, gate, up, count, hidden, dtype);
}

}  // namespace qd
