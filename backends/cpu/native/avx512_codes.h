// How slots become pairs of bf16, for AVX-512. Included after avx512_base.h.
//
// A decoder has kPairs (slots of a 16-bit word), load(dwords) -> State, and pair(state, j): for 16 outputs the values of
// slot j of both words of a dword, in the low and the high half of a lane, exact in bf16. Integer codes come without
// their offset. Slots of padding give 0 (or whatever a code of 0 is), and x is 0 there.
#pragma once
#include "avx512_base.h"

namespace qd {
namespace {

// bf16 of magnitude * 2^exponent, exact for magnitudes up to 255.
constexpr uint16_t bf16_of(uint32_t magnitude, int exponent) {
  if (magnitude == 0) return 0;
  int top = 0;
  while (magnitude >> (top + 1)) ++top;
  const uint32_t fraction = (top <= 7 ? magnitude << (7 - top) : magnitude >> (top - 7)) & 0x7f;
  return static_cast<uint16_t>(static_cast<uint32_t>(127 + exponent + top) << 7 | fraction);
}
constexpr uint16_t bf16_of_fp4(uint32_t code) {
  const uint32_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  return static_cast<uint16_t>((code & 8) << 12 | bf16_of(twice[code & 7], -1));
}
constexpr uint16_t bf16_of_e4m3(uint32_t code) {
  if (code == 0x7f) return 0x7fc0;
  return code < 8 ? bf16_of(code, -9) : bf16_of(8 | (code & 7), static_cast<int>(code >> 3) - 10);
}
constexpr uint16_t bf16_of_int(uint32_t magnitude) { return bf16_of(magnitude, 0); }

struct WordTable {
  alignas(64) uint16_t at[32];
};
constexpr WordTable word_table(int bits, bool fp4) {
  WordTable table{};
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t code = i & ((1u << bits) - 1), offset = 1u << (bits - 1);
    table.at[i] = fp4              ? bf16_of_fp4(code)
                  : code >= offset ? bf16_of(code - offset, 0)
                                   : static_cast<uint16_t>(0x8000 | bf16_of(offset - code, 0));
  }
  return table;
}

// By the low 5 bits of -16 .. 15.
constexpr WordTable difference_table() {
  WordTable table{};
  for (uint32_t i = 0; i < 32; ++i)
    table.at[i] = i < 16 ? bf16_of(i, 0) : static_cast<uint16_t>(0x8000 | bf16_of(32 - i, 0));
  return table;
}

// Up to 5 bits: a table of 32 words in a register. vpermw looks at 5 bits of its index, so entries repeat for the bits
// of the next slot.
template <int kBits>
struct TableCodes {
  static constexpr int kPairs = 16 / kBits;
  static constexpr WordTable kInt = word_table(kBits, false), kFp4 = word_table(4, true),
                             kDifferences = difference_table();
  static constexpr bool kNibbles = kBits <= 4;
  using State = __m512i;
  __m512i table, differences;

  explicit TableCodes(int32_t format)
      : table(_mm512_load_si512(format == QD_FP4 ? kFp4.at : kInt.at)),
        differences(_mm512_load_si512(kDifferences.at)) {}
  QD_INLINE State load(__m512i dwords) const { return dwords; }
  QD_INLINE __m512i pair(State dwords, int j) const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(dwords, static_cast<unsigned>(j * kBits)), table);
  }
  // Less zero points of at most 4 bits, given in words as they are stored.
  QD_INLINE __m512i pair_less(State dwords, int j, __m512i zero) const {
    const __m512i code = _mm512_and_si512(_mm512_srli_epi16(dwords, static_cast<unsigned>(j * kBits)),
                                          _mm512_set1_epi16((1 << kBits) - 1));
    return _mm512_permutexvar_epi16(_mm512_sub_epi16(code, zero), differences);
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

struct ByteTable {
  alignas(64) uint8_t high[128], low[128];
};
constexpr ByteTable byte_table(uint16_t (*value)(uint32_t)) {
  ByteTable table{};
  for (uint32_t i = 0; i < 128; ++i) {
    table.high[i] = static_cast<uint8_t>(value(i) >> 8);
    table.low[i] = static_cast<uint8_t>(value(i) & 0xff);
  }
  return table;
}
constexpr ByteTable kE4m3Table = byte_table(bf16_of_e4m3), kIntTable = byte_table(bf16_of_int);

// 128 entries of bf16 in two registers for each of their bytes; vpermi2b looks at 7 bits of its index.
struct ByteTables {
  __m512i high[2], low[2];

  explicit ByteTables(const ByteTable& table) {
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(table.high + 64 * i);
      low[i] = _mm512_load_si512(table.low + 64 * i);
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

struct Fp8Codes {
  static constexpr int kPairs = 2;
  static constexpr bool kNibbles = false;
  using State = Halves;
  ByteTables tables{kE4m3Table};

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
  static constexpr bool kNibbles = false;
  using State = Halves;
  ByteTables tables{kIntTable};

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
