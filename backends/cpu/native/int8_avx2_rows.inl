// Of int8_avx2.cpp: rows of x to codes, sums to rows of y.
// clang-format off: this is no header of its own

// --- rows of x and y ---

template <int32_t kDtype>
QD_INLINE __m256 read(const void* x, int64_t i) {
  if (kDtype == QD_FP32) return _mm256_loadu_ps(static_cast<const float*>(x) + i);
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(x) + i));
  if (kDtype == QD_FP16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

// The last columns, fewer than 8: in a buffer of their own, filled up with `fill`.
struct Tail {
  alignas(32) float values[8];

  Tail(const void* x, int32_t dtype, int64_t begin, int64_t end, float fill) {
    for (int64_t i = 0; i < 8; ++i) values[i] = begin + i < end ? load_float(x, begin + i, dtype) : fill;
  }
};

template <int32_t kDtype>
void range_of(const void* x, int64_t k, float* smallest, float* largest) {
  // Of a NaN and a number, min and max return the second: numbers go first, NaNs are found apart.
  __m256 low = _mm256_set1_ps(load_float(x, 0, kDtype)), high = low, low2 = low, high2 = low, nan = _mm256_cmp_ps(low, low, _CMP_UNORD_Q);
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    const __m256 a = read<kDtype>(x, i), b = read<kDtype>(x, i + 8);
    low = _mm256_min_ps(a, low);
    high = _mm256_max_ps(a, high);
    low2 = _mm256_min_ps(b, low2);
    high2 = _mm256_max_ps(b, high2);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
  }
  for (; i < k; i += 8) {
    const Tail tail(x, kDtype, i, k, load_float(x, 0, kDtype));
    const __m256 a = _mm256_load_ps(tail.values);
    low = _mm256_min_ps(a, low);
    high = _mm256_max_ps(a, high);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  alignas(32) float lows[8], highs[8];
  _mm256_store_ps(lows, _mm256_min_ps(low, low2));
  _mm256_store_ps(highs, _mm256_max_ps(high, high2));
  *smallest = *std::min_element(lows, lows + 8);
  *largest = *std::max_element(highs, highs + 8);
  if (_mm256_movemask_ps(nan)) *smallest = *largest = float_of_bits(0x7fc00000);
}

void range(const void* x, int32_t dtype, int64_t k, float* smallest, float* largest) {
  switch (dtype) {
    case QD_BF16: return range_of<QD_BF16>(x, k, smallest, largest);
    case QD_FP16: return range_of<QD_FP16>(x, k, smallest, largest);
    default: return range_of<QD_FP32>(x, k, smallest, largest);
  }
}

struct Rounding {
  __m256 scale, zero, low, high;
  Vec shift;

  explicit Rounding(const Quantizer& by)
      : scale(_mm256_set1_ps(by.scale)), zero(_mm256_set1_ps(by.zero)), low(_mm256_set1_ps(by.low)),
        high(_mm256_set1_ps(by.high)), shift(_mm256_set1_epi32(by.shift)) {}

  // The clamp is at integers, so it may come before the rounding, which then cannot overflow.
  QD_INLINE Vec operator()(__m256 x) const {
    const __m256 scaled = _mm256_add_ps(_mm256_div_ps(x, scale), zero);
    const __m256 inside = _mm256_min_ps(_mm256_max_ps(scaled, low), high);
    return _mm256_sub_epi32(
        _mm256_cvttps_epi32(_mm256_round_ps(inside, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)), shift);
  }
};

template <int32_t kDtype>
bool quantize_as(const void* x, int64_t k, const Quantizer& by, int16_t* codes) {
  const Rounding rounded(by);
  __m256 nan = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    const __m256 a = read<kDtype>(x, i), b = read<kDtype>(x, i + 8);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
    // packs takes 4 of a, 4 of b, 4 of a, 4 of b
    const Vec words = _mm256_packs_epi32(rounded(a), rounded(b));
    keep(codes + i, _mm256_permute4x64_epi64(words, 0xd8));
  }
  for (; i < k; i += 8) {
    const Tail tail(x, kDtype, i, k, 0);
    const __m256 a = _mm256_load_ps(tail.values);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    alignas(32) int32_t last[8];
    keep(last, rounded(a));
    for (int64_t c = 0; c < 8 && i + c < k; ++c) codes[i + c] = static_cast<int16_t>(last[c]);
  }
  return _mm256_movemask_ps(nan) != 0;
}

bool quantize(const void* x, int32_t dtype, int64_t k, const Quantizer& by, int16_t* codes) {
  switch (dtype) {
    case QD_BF16: return quantize_as<QD_BF16>(x, k, by, codes);
    case QD_FP16: return quantize_as<QD_FP16>(x, k, by, codes);
    default: return quantize_as<QD_FP32>(x, k, by, codes);
  }
}

// fp32 to bf16 in the low words of its dwords.
QD_INLINE Vec bf16(__m256 value) {
  const Vec bits = _mm256_castps_si256(value);
  const Vec even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Vec rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
  const Vec nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

template <int32_t kDtype>
QD_INLINE void write(__m256 value, void* y, int64_t o) {
  if (kDtype == QD_FP32) return _mm256_storeu_ps(static_cast<float*>(y) + o, value);
  __m128i* const to = reinterpret_cast<__m128i*>(static_cast<uint16_t*>(y) + o);
  if (kDtype == QD_FP16) return _mm_storeu_si128(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  const Vec dwords = bf16(value);
  _mm_storeu_si128(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(dwords, dwords), 0x08)));
}

template <int32_t kDtype>
void store_as(const float* values, int64_t count, float factor, const float* bias, void* y) {
  const __m256 by = _mm256_set1_ps(factor);
  int64_t o = 0;
  for (; o + 8 <= count; o += 8) {
    __m256 value = _mm256_mul_ps(_mm256_loadu_ps(values + o), by);
    if (bias) value = _mm256_add_ps(value, _mm256_loadu_ps(bias + o));
    write<kDtype>(value, y, o);
  }
  if (o == count) return;
  alignas(32) float last[8] = {};
  for (int64_t i = o; i < count; ++i) last[i - o] = bias ? values[i] * factor + bias[i] : values[i] * factor;
  alignas(32) char rounded[32];
  write<kDtype>(_mm256_load_ps(last), rounded, 0);
  constexpr int64_t kSize = kDtype == QD_FP32 ? 4 : 2;
  memcpy(static_cast<char*>(y) + o * kSize, rounded, static_cast<size_t>((count - o) * kSize));
}

void store(const float* values, int64_t count, float factor, const float* bias, void* y, int32_t dtype) {
  switch (dtype) {
    case QD_BF16: return store_as<QD_BF16>(values, count, factor, bias, y);
    case QD_FP16: return store_as<QD_FP16>(values, count, factor, bias, y);
    default: return store_as<QD_FP32>(values, count, factor, bias, y);
  }
}
