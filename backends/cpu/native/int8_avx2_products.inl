// Of int8_avx2.cpp: codes as they are multiplied, and their products with rows of x.
// clang-format off: this is no header of its own

// --- codes of a dword to what is multiplied ---

template <int kBits>
struct Codes {
  static constexpr int kSlots = 16 / kBits;
  static constexpr int kSteps = (kSlots + 1) / 2;
  static constexpr int kMask = (1 << kBits) - 1;
  static constexpr int kHigh = kBits * kSteps - 8;  // from where the high byte's code is to where it belongs
  // Results of vpmaddubsw that can be added in 16 bits.
  static constexpr int kAdds = 32767 / (2 * kMask * 128);
  static_assert(kAdds >= 1, "a pair of products must fit 16 bits");

  static QD_INLINE Vec step(Vec v, int i) {
    const Vec t = _mm256_srli_epi16(v, kBits * i);
    if (kHigh == 0) return _mm256_and_si256(t, _mm256_set1_epi16(kMask * 0x101));
    const Vec low = _mm256_and_si256(t, _mm256_set1_epi16(kMask));
    if (i + kSteps >= kSlots) return low;
    return _mm256_or_si256(low, _mm256_and_si256(_mm256_srli_epi16(t, kHigh), _mm256_set1_epi16(kMask << 8)));
  }
  static QD_INLINE Vec multiply(Vec codes, Vec x) { return _mm256_maddubs_epi16(codes, x); }
};

// As words: even columns are the low byte and then the high one.
template <>
struct Codes<8> {
  static constexpr int kSteps = 2;
  static constexpr int kAdds = 0;  // no 16-bit sums

  static QD_INLINE Vec step(Vec v, int i) {
    return i == 0 ? _mm256_and_si256(v, _mm256_set1_epi16(0xff)) : _mm256_srli_epi16(v, 8);
  }
  static QD_INLINE Vec multiply(Vec codes, Vec x) { return _mm256_madd_epi16(codes, x); }
};

QD_INLINE Vec widened(Vec words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

// --- products ---

constexpr int64_t kAhead = 512;  // dwords

template <int kVectors>
QD_INLINE void fetch_row(const uint32_t* codes) {
  for (int v = 0; v < kVectors; v += 2) fetch(reinterpret_cast<const char*>(codes + kAhead + 8 * v));
}

// One row of x times kVectors * 8 outputs of a chunk as packed. sums[8v ..] += . codes: dword row r at r * width.
template <int kBits, int kVectors>
void one_row(const uint32_t* codes, int64_t width, int64_t rows, const int32_t* x, int32_t* sums) {
  using C = Codes<kBits>;
  Vec wide[kVectors];
  for (int v = 0; v < kVectors; ++v) wide[v] = load(sums + 8 * v);
  if (C::kAdds == 0) {
    for (int64_t r = 0; r < rows; ++r, codes += width, x += C::kSteps) {
      fetch_row<kVectors>(codes);
      for (int v = 0; v < kVectors; ++v) {
        const Vec dwords = load(codes + 8 * v);
        for (int i = 0; i < C::kSteps; ++i)
          wide[v] = _mm256_add_epi32(wide[v], C::multiply(C::step(dwords, i), spread(x + i)));
      }
    }
  } else {
    constexpr int kRows = C::kAdds == 0 ? 1 : C::kAdds / C::kSteps;
    for (int64_t r = 0; r < rows;) {
      const int64_t end = std::min<int64_t>(r + kRows, rows);
      Vec narrow[kVectors];
      for (int v = 0; v < kVectors; ++v) narrow[v] = _mm256_setzero_si256();
      for (; r < end; ++r, codes += width, x += C::kSteps) {
        fetch_row<kVectors>(codes);
        for (int v = 0; v < kVectors; ++v) {
          const Vec dwords = load(codes + 8 * v);
          for (int i = 0; i < C::kSteps; ++i)
            narrow[v] = _mm256_add_epi16(narrow[v], C::multiply(C::step(dwords, i), spread(x + i)));
        }
      }
      for (int v = 0; v < kVectors; ++v) wide[v] = _mm256_add_epi32(wide[v], widened(narrow[v]));
    }
  }
  for (int v = 0; v < kVectors; ++v) keep(sums + 8 * v, wide[v]);
}

// Codes of a chunk to panels of 16 outputs: [panel][rows * steps][16] dwords.
template <int kBits>
void unpack(const uint32_t* codes, int64_t width, int64_t rows, int32_t* to) {
  using C = Codes<kBits>;
  const int64_t panel = rows * C::kSteps * 16;
  for (int64_t r = 0; r < rows; ++r, codes += width, to += C::kSteps * 16)
    for (int64_t o = 0; o < width; o += 16) {
      int32_t* const at = to + o / 16 * panel;
      const Vec first = load(codes + o), second = load(codes + o + 8);
      for (int i = 0; i < C::kSteps; ++i) {
        keep(at + 16 * i, C::step(first, i));
        keep(at + 16 * i + 8, C::step(second, i));
      }
    }
}

// Where a block fetches from with each step; the same place over and over where there is nothing to fetch.
struct Ahead {
  const char* at;
  int64_t step;
};

// kRows rows of x (at x, x + stride, ...; dwords) times a panel: sums[row * 64 + 0 .. 15] +=.
template <int kBits, int kRows>
void block(const int32_t* codes, int64_t steps, const int32_t* x, int64_t stride, int32_t* sums, Ahead ahead) {
  using C = Codes<kBits>;
  Vec sum[kRows][2];
  if (C::kAdds == 0) {
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < 2; ++v) sum[i][v] = load(sums + i * kTile + 8 * v);
    for (int64_t s = 0; s < steps; ++s) {
      const Vec first = load(codes + 16 * s), second = load(codes + 16 * s + 8);
      fetch(ahead.at);
      ahead.at += ahead.step;
      for (int i = 0; i < kRows; ++i) {
        const Vec value = spread(x + i * stride + s);
        sum[i][0] = add32(sum[i][0], C::multiply(first, value));
        sum[i][1] = add32(sum[i][1], C::multiply(second, value));
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < 2; ++v) keep(sums + i * kTile + 8 * v, sum[i][v]);
    return;
  }
  for (int64_t s = 0; s < steps;) {
    const int64_t end = std::min<int64_t>(s + C::kAdds, steps);
    for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (; s < end; ++s) {
      const Vec first = load(codes + 16 * s), second = load(codes + 16 * s + 8);
      fetch(ahead.at);
      ahead.at += ahead.step;
      for (int i = 0; i < kRows; ++i) {
        const Vec value = spread(x + i * stride + s);
        sum[i][0] = add16(sum[i][0], C::multiply(first, value));
        sum[i][1] = add16(sum[i][1], C::multiply(second, value));
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < 2; ++v) {
        int32_t* const at = sums + i * kTile + 8 * v;
        keep(at, _mm256_add_epi32(load(at), widened(sum[i][v])));
      }
  }
}

template <int kBits>
void blocks(int64_t rows, const int32_t* codes, int64_t steps, const int32_t* x, int64_t stride, int32_t* sums,
            Ahead ahead) {
  switch (rows) {
    case 1: return block<kBits, 1>(codes, steps, x, stride, sums, ahead);
    case 2: return block<kBits, 2>(codes, steps, x, stride, sums, ahead);
    case 3: return block<kBits, 3>(codes, steps, x, stride, sums, ahead);
    case 4: return block<kBits, 4>(codes, steps, x, stride, sums, ahead);
    case 5: return block<kBits, 5>(codes, steps, x, stride, sums, ahead);
    default: return block<kBits, 6>(codes, steps, x, stride, sums, ahead);
  }
}

template <int kBits>
void one_row_of(int64_t width, const uint32_t* codes, int64_t rows, const int32_t* x, int32_t* sums) {
  switch (width) {
    case 16: return one_row<kBits, 2>(codes, width, rows, x, sums);
    case 32: return one_row<kBits, 4>(codes, width, rows, x, sums);
    case 48: return one_row<kBits, 6>(codes, width, rows, x, sums);
    default: return one_row<kBits, 8>(codes, width, rows, x, sums);
  }
}
