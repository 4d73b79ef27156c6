// Codes as unsigned bytes for vpdpbusd, for AVX-512: x stands in the byte order of int8.h. Included after
// avx512_base.h.
#pragma once
#include "avx512_base.h"

namespace qd {
namespace {

// Codes as bytes, in kSteps steps of a dword.
template <int kBits>
struct Bytes {
  static constexpr int kSlots = 16 / kBits, kSteps = (kSlots + 1) / 2, kMask = (1 << kBits) - 1;

  QD_INLINE __m512i step(__m512i dwords, int i) const {
    const __m512i t = _mm512_srli_epi16(dwords, static_cast<unsigned>(kBits * i));
    if (kSlots % 2 == 0) return _mm512_and_si512(t, _mm512_set1_epi8(kMask));
    const __m512i high = _mm512_srli_epi16(t, static_cast<unsigned>(kSlots % 2 ? kBits * kSteps - 8 : 0));
    return _mm512_or_si512(_mm512_and_si512(t, _mm512_set1_epi16(kMask)),
                           _mm512_and_si512(high, _mm512_set1_epi16(static_cast<int16_t>(kMask << 8))));
  }
};
template <>
struct Bytes<8> {
  static constexpr int kSteps = 1;
  QD_INLINE __m512i step(__m512i dwords, int) const { return dwords; }
};

// e2m1 nibbles: twice the value, plus 12.
struct Fp4Bytes : Bytes<4> {
  static constexpr int32_t kOffset = 12;
  __m512i table;

  Fp4Bytes() : table(_mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0))) {}
  QD_INLINE __m512i step(__m512i dwords, int i) const { return _mm512_shuffle_epi8(table, Bytes<4>::step(dwords, i)); }
};

}  // namespace
}  // namespace qd
