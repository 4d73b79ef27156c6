// What the AVX-512 files share: the instruction set they are compiled for, loads of scales and zero points, stores.
//
// Needs avx512 f, bw, dq, vl, vbmi, vnni and bf16 (and avx2, fma, f16c): AMD from Zen 4 on, Intel from Sapphire Rapids
// on. dispatch.cpp asks for just these. These files are tested on any machine by compiling them with QD_EMULATE against
// SIMDe (tests/native/avx512_simde.h). What is said of their speed was measured on Intel's Emerald Rapids; AMD's
// processors are unmeasured.
//
// Everything here lives in an unnamed namespace, and what is included comes before the pragma: no function compiled for
// AVX-512 may be merged with another file's copy of it.
#pragma once
#include <stdint.h>
#include <string.h>

#include "kernels.h"

#if defined(__GNUC__) && !defined(__clang__)
// Of GCC 12's own headers, which leave unused operands undefined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#ifdef QD_EMULATE
#include "avx512_simde.h"
#else
#include <immintrin.h>
#endif

// QD_AVX512_END comes last in a file.
#if defined(QD_EMULATE)
#define QD_AVX512_END
#elif defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16"))), \
    apply_to = function)
#define QD_AVX512_END _Pragma("clang attribute pop")
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16")
#define QD_AVX512_END
#endif

// In functions that must not be left standing as calls: their arguments are registers.
#define QD_INLINE inline __attribute__((always_inline))
// Before loops of constant length over registers: only unrolled do their arrays become registers.
#if defined(QD_EMULATE)
#define QD_UNROLL(n)
#elif defined(__clang__)
#define QD_UNROLL(n) _Pragma("unroll")
#else
#define QD_TEXT(text) #text
#define QD_PRAGMA(text) _Pragma(QD_TEXT(text))
#define QD_UNROLL(n) QD_PRAGMA(GCC unroll n)
#endif

namespace qd {
namespace {

QD_INLINE __m512 floats(__m512i bits) { return _mm512_castsi512_ps(bits); }
QD_INLINE __m512i bits(__m512 values) { return _mm512_castps_si512(values); }

// Sums of a loop, before what is done with them. Else GCC does the first of that in the loop, each time round, since it
// knows the result for sums that are still 0.
QD_INLINE void as_it_is(__m512i& sum) {
#ifndef QD_EMULATE
  __asm__ volatile("" : "+v"(sum));
#else
  (void)sum;
#endif
}

// 16 bf16 as fp32.
QD_INLINE __m512 widen_bf16(__m256i values) { return floats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16)); }

// 64 bytes of a long stream. What is a page ahead is asked for: the processor's own prefetchers stop at the end of a
// page.
QD_INLINE __m512i load_ahead(const uint32_t* at) {
#ifndef QD_EMULATE
  constexpr int64_t kAhead = 2048;
  _mm_prefetch((const char*)(at + kAhead), _MM_HINT_T1);
#endif
  return _mm512_loadu_si512(at);
}

// Asks for what a tile's group `g` has beside codes, in time for the groups before it to be multiplied.
QD_INLINE void fetch_factors(const Tile& tile, int64_t g) {
#ifndef QD_EMULATE
  for (int64_t at = 0; at < tile.scale_step; at += 64)
    _mm_prefetch((const char*)(tile.scale + g * tile.scale_step + at), _MM_HINT_T0);
  if (tile.zero) _mm_prefetch((const char*)(tile.zero + g * tile.zero_step), _MM_HINT_T0);
#else
  (void)tile, (void)g;
#endif
}

// acc + even product + odd product of pairs of bf16, in fp32.
QD_INLINE __m512 dot_bf16(__m512 acc, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

// 16 bytes as fp32 powers of two: 255 is NaN and 0 is 2^-127, which has no biased exponent of its own.
QD_INLINE __m512 widen_e8m0(__m128i codes) {
  const __m512i wide = _mm512_cvtepu8_epi32(codes);
  __m512i value = _mm512_slli_epi32(wide, 23);
  value = _mm512_mask_mov_epi32(value, _mm512_cmpeq_epi32_mask(wide, _mm512_setzero_si512()),
                                _mm512_set1_epi32(0x00400000));
  value = _mm512_mask_mov_epi32(value, _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(255)),
                                _mm512_set1_epi32(0x7fc00000));
  return floats(value);
}

// 16 bytes as fp32: shifted into fp16's place they are 2^-8 of the value, subnormals too.
QD_INLINE __m512 widen_e4m3(__m128i codes) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(wide, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.f));
  const __m512i kept = _mm512_and_si512(_mm512_cvtepu8_epi32(codes), _mm512_set1_epi32(0x7f));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(kept, _mm512_set1_epi32(0x7f));
  return _mm512_mask_mov_ps(value, nan, floats(_mm512_set1_epi32(0x7fc00000)));
}

// 16 values of a dtype from address `at`, as fp32.
QD_INLINE __m512 load_scales(const char* at, int32_t dtype) {
  switch (dtype) {
    case QD_BF16: return widen_bf16(_mm256_loadu_si256((const __m256i*)at));
    case QD_FP16: return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at));
    case QD_E8M0: return widen_e8m0(_mm_loadu_si128((const __m128i*)at));
    case QD_E4M3: return widen_e4m3(_mm_loadu_si128((const __m128i*)at));
    default: return _mm512_loadu_ps(at);
  }
}

// The 16 zero points from output `first` of a tile's group on, as int32, 2^(slot_bits-1) included.
QD_INLINE __m512i load_zeros(const Tile& tile, int64_t g, int64_t first) {
  const uint8_t* zero = tile.zero + g * tile.zero_step;
  if (tile.zero_step == tile.width) return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(zero + first)));
  const int64_t half = tile.width / 2;  // a multiple of 8
  const __m128i low = _mm_loadl_epi64((const __m128i*)(zero + (first < half ? first : first - half)));
  const int64_t next = first + 8;
  const __m128i high = _mm_loadl_epi64((const __m128i*)(zero + (next < half ? next : next - half)));
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(low, high));
  // Two halves of 8 outputs, each from low or from high nibbles.
  const __mmask16 shifted = static_cast<__mmask16>((first < half ? 0 : 0x00ff) | (next < half ? 0 : 0xff00));
  const __m512i nibbles = _mm512_mask_mov_epi32(wide, shifted, _mm512_srli_epi32(wide, 4));
  return _mm512_and_si512(nibbles, _mm512_set1_epi32(15));
}

// The first n < 16 lanes.
QD_INLINE __mmask16 lanes(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

// 16 values of x (of the lanes of `mask`; the others are 0 and not read) as fp32.
QD_INLINE __m512 load_x(const void* at, __mmask16 mask, int32_t dtype) {
  switch (dtype) {
    case QD_BF16: return widen_bf16(_mm256_maskz_loadu_epi16(mask, at));
    case QD_FP16: return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at));
    default: return _mm512_maskz_loadu_ps(mask, at);
  }
}

// fp32 to bf16, to nearest even; subnormals are kept, which vcvtneps2bf16 would flush.
QD_INLINE __m256i narrow_bf16(__m512 values) {
  const __m512i v = bits(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(v, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_or_si512(v, _mm512_set1_epi32(0x00400000)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

inline void multiply_units(float unit, int64_t m, int64_t width, float* out, int64_t ld) {
  const __m512 by = _mm512_set1_ps(unit);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < width; o += 16)
      _mm512_store_ps(out + i * ld + o, _mm512_mul_ps(_mm512_load_ps(out + i * ld + o), by));
}

inline void store(const float* out, const float* bias, int64_t count, void* y, int32_t dtype) {
  for (int64_t o = 0; o < count; o += 16) {
    const __mmask16 mask = lanes(count - o);
    __m512 value = _mm512_maskz_loadu_ps(mask, out + o);
    if (bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias + o));
    if (dtype == QD_FP32) {
      _mm512_mask_storeu_ps((float*)y + o, mask, value);
    } else {
      const __m256i half = dtype == QD_BF16
          ? narrow_bf16(value)
          : _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm256_mask_storeu_epi16((uint16_t*)y + o, mask, half);
    }
  }
}

}  // namespace
}  // namespace qd
