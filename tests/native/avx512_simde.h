// AVX-512 on a machine without it: SIMDe's intrinsics, and those that SIMDe 0.7.4 lacks, one element at a time.
// Included in place of <immintrin.h> by the AVX-512 kernels when they are compiled with QD_EMULATE.
#pragma once
// Called, not inlined: that compiles in a tenth of the time.
#define SIMDE_NO_INLINE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

namespace emulated {

template <class To, class From>
inline To as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "a register is copied whole");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class T, int n>
struct Lanes {
  T at[n];
};

// Each lane of a register of From as a lane of To.
template <class To, class From, int n, class Out, class In>
inline Out convert(const In& in) {
  const auto from = as<Lanes<From, n>>(in);
  Lanes<To, n> to;
  for (int i = 0; i < n; ++i) to.at[i] = static_cast<To>(from.at[i]);
  return as<Out>(to);
}
// Lanes of the mask from memory, the others 0 and untouched.
template <class T, int n, class Out>
inline Out load(uint64_t mask, const void* from) {
  Lanes<T, n> to;
  for (int i = 0; i < n; ++i) {
    to.at[i] = T();
    if (mask >> i & 1) memcpy(&to.at[i], static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  }
  return as<Out>(to);
}
template <class T, int n, class In>
inline void store(void* to, uint64_t mask, const In& in) {
  const auto from = as<Lanes<T, n>>(in);
  for (int i = 0; i < n; ++i)
    if (mask >> i & 1) memcpy(static_cast<char*>(to) + i * sizeof(T), &from.at[i], sizeof(T));
}
struct Halves {
  __m128i at[2];
};
struct Floats {
  __m256 at[2];
};
inline __m512 halves_to_floats(__m256i in) {
  const auto from = as<Halves>(in);
  Floats to;
  for (int i = 0; i < 2; ++i) to.at[i] = simde_mm256_cvtph_ps(from.at[i]);
  return as<__m512>(to);
}
inline __m256i floats_to_halves(__m512 in) {
  const auto from = as<Floats>(in);
  Halves to;
  for (int i = 0; i < 2; ++i) to.at[i] = simde_mm256_cvtps_ph(from.at[i], 0);
  return as<__m256i>(to);
}
inline int32_t largest(__m512i in) {
  const auto from = as<Lanes<int32_t, 16>>(in);
  int32_t most = from.at[0];
  for (const int32_t value : from.at) most = value > most ? value : most;
  return most;
}
inline __m512i shift_right(__m512i in, int by) {
  auto of = as<Lanes<int32_t, 16>>(in);
  for (int32_t& value : of.at) value >>= by;
  return as<__m512i>(of);
}
// To nearest even.
inline __m512i rounded(__m512 in) {
  const auto from = as<Lanes<float, 16>>(in);
  Lanes<int32_t, 16> to;
  for (int i = 0; i < 16; ++i) to.at[i] = static_cast<int32_t>(nearbyintf(from.at[i]));
  return as<__m512i>(to);
}
inline float sum(__m512 in) {
  auto from = as<Lanes<float, 16>>(in);
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; ++i) from.at[i] += from.at[i + n];
  return from.at[0];
}

}  // namespace emulated

#define _mm512_cvtepu8_epi32(a) emulated::convert<uint32_t, uint8_t, 16, __m512i>(a)
#define _mm512_cvtepu16_epi32(a) emulated::convert<uint32_t, uint16_t, 16, __m512i>(a)
#define _mm512_cvtepi32_epi16(a) emulated::convert<uint16_t, uint32_t, 16, __m256i>(a)
#define _mm512_cvtepi32_ps(a) emulated::convert<float, int32_t, 16, __m512>(a)
#define _mm512_cvtph_ps(a) emulated::halves_to_floats(a)
#define _mm512_cvtps_ph(a, rounding) emulated::floats_to_halves(a)
#define _mm512_reduce_add_ps(a) emulated::sum(a)
#define _mm256_maskz_loadu_epi16(k, p) emulated::load<uint16_t, 16, __m256i>(k, p)
#define _mm512_maskz_loadu_ps(k, p) emulated::load<float, 16, __m512>(k, p)
#define _mm512_mask_storeu_ps(p, k, a) emulated::store<float, 16>(p, k, a)
#define _mm256_mask_storeu_epi16(p, k, a) emulated::store<uint16_t, 16>(p, k, a)
#define _mm256_mask_storeu_epi32(p, k, a) emulated::store<uint32_t, 8>(p, k, a)
#define _mm512_cvtepi32_epi8(a) emulated::convert<uint8_t, uint32_t, 16, __m128i>(a)
#define _mm512_srai_epi32(a, by) emulated::shift_right(a, by)
#define _mm512_cvtps_epi32(a) emulated::rounded(a)
#define _mm512_reduce_max_epi32(a) emulated::largest(a)
#define _mm512_mask_storeu_epi8(p, k, a) emulated::store<uint8_t, 64>(p, k, a)
