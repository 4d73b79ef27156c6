// How slots become pairs of bf16, for AVX-512. Included after avx512_base.h.
//
// A decoder has kPairs (slots of a 16-bit word), load(dwords) -> State, and pair(state, j): for 16 outputs the values of
// slot j of both words of a dword, in the low and the high half of a lane, exact in bf16. Integer codes come without
// their offset. Slots of padding give 0 (or whatever a code of 0 is), and x is 0 there.
#pragma once
#include "avx512_base.h"

namespace qd {
namespace {

// Up to 5 bits: a table of 32 words in a register. vpermw looks at 5 bits of its index, so entries repeat for the bits
// of the next slot.
template <int kBits>
struct TableCodes {
  static constexpr int kPairs = 16 / kBits;
  using State = __m512i;
  __m512i table;

  explicit TableCodes(int32_t format) {
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      const int code = i & ((1 << kBits) - 1);
      const float value = format == QD_FP4 ? float_of_fp4(static_cast<uint32_t>(code))
                                           : static_cast<float>(code - (1 << (kBits - 1)));
      values[i] = bf16_of_float(value);
    }
    table = _mm512_load_si512(values);
  }
  QD_INLINE State load(__m512i dwords) const { return dwords; }
  QD_INLINE __m512i pair(State dwords, int j) const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(dwords, static_cast<unsigned>(j * kBits)), table);
  }
};

// The two bytes of 64 bf16 numbers.
struct Halves {
  __m512i high, low;
};

// Slot 0 has the low bytes of words, slot 1 the high ones.
QD_INLINE __m512i pair_of_halves(const Halves& of, int j) {
  const __m512i upper = _mm512_set1_epi16(static_cast<int16_t>(0xff00));
  // 0xca: where the first has a bit, the second, else the third
  if (j == 0) return _mm512_ternarylogic_epi32(upper, _mm512_slli_epi16(of.high, 8), of.low, 0xca);
  return _mm512_ternarylogic_epi32(upper, of.high, _mm512_srli_epi16(of.low, 8), 0xca);
}

// 128 entries of bf16 in two registers for each of their bytes; vpermi2b looks at 7 bits of its index.
struct ByteTables {
  __m512i high[2], low[2];

  template <class Value>
  explicit ByteTables(Value value) {
    alignas(64) uint8_t bytes[2][128];
    for (int i = 0; i < 128; ++i) {
      const uint16_t word = bf16_of_float(value(i));
      bytes[0][i] = static_cast<uint8_t>(word >> 8);
      bytes[1][i] = static_cast<uint8_t>(word);
    }
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(bytes[0] + 64 * i);
      low[i] = _mm512_load_si512(bytes[1] + 64 * i);
    }
  }
  QD_INLINE Halves look_up(__m512i index) const {
    return {_mm512_permutex2var_epi8(high[0], index, high[1]), _mm512_permutex2var_epi8(low[0], index, low[1])};
  }
};

// first | (second & 0x80) in every byte
QD_INLINE __m512i with_sign(__m512i first, __m512i second) {
  return _mm512_ternarylogic_epi32(first, second, _mm512_set1_epi8(static_cast<int8_t>(0x80)), 0xf8);
}

inline float magnitude_e4m3(int i) { return float_of_e4m3(static_cast<uint8_t>(i)); }
inline float magnitude_int(int i) { return static_cast<float>(i); }

struct Fp8Codes {
  static constexpr int kPairs = 2;
  using State = Halves;
  ByteTables tables{magnitude_e4m3};

  explicit Fp8Codes(int32_t) {}
  QD_INLINE State load(__m512i codes) const {
    Halves found = tables.look_up(codes);
    found.high = with_sign(found.high, codes);
    return found;
  }
  QD_INLINE __m512i pair(const State& state, int j) const { return pair_of_halves(state, j); }
};

// 8-bit integers by sign and magnitude: q = u - 128. The magnitude 128 is looked up as 0, whose low byte is right.
struct Int8Codes {
  static constexpr int kPairs = 2;
  using State = Halves;
  ByteTables tables{magnitude_int};

  explicit Int8Codes(int32_t) {}
  QD_INLINE State load(__m512i codes) const {
    const __m512i q = _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<int8_t>(0x80)));
    const __m512i magnitude = _mm512_abs_epi8(q);
    Halves found = tables.look_up(magnitude);
    found.high = _mm512_mask_mov_epi8(found.high, _mm512_movepi8_mask(magnitude), _mm512_set1_epi8(0x43));
    found.high = with_sign(found.high, q);
    return found;
  }
  QD_INLINE __m512i pair(const State& state, int j) const { return pair_of_halves(state, j); }
};

}  // namespace
}  // namespace qd
