// Of avx2.cpp: values to fp32 and back, eight at a time; a tile's scales and zero points; rows of x.
// clang-format off: this is no header of its own

__m256 floats_of_bf16(__m128i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

__m256 load8(const void* values, int32_t dtype) {
  if (dtype == QD_FP32) return _mm256_loadu_ps(static_cast<const float*>(values));
  const __m128i words = _mm_loadu_si128(static_cast<const __m128i*>(values));
  return dtype == QD_BF16 ? floats_of_bf16(words) : _mm256_cvtph_ps(words);
}

// e4m3 bytes in the upper halves of 16-bit words, as fp16 words of the value times 2^-8: the sign stays, the exponent's
// and the mantissa's bits move one down (fp16's bias is 15, e4m3's 7). Subnormals come out right, NaN as 480.
__m256i halves_of_e4m3(__m256i words) {
  return _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
}

// Eight scales of a tile. Scales are no NaN: whoever loads a checkpoint refuses those.
__m256 load_scales(const char* scale, int64_t i, int32_t dtype) {
  if (dtype == QD_FP32) return _mm256_loadu_ps(reinterpret_cast<const float*>(scale) + i);
  if (dtype == QD_BF16 || dtype == QD_FP16) return load8(scale + 2 * i, dtype);
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scale + i));
  if (dtype == QD_E8M0)  // 2^-127, the exponent 0, is a subnormal of one bit
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23), _mm256_set1_epi32(0x00400000)));
  const __m256i words = _mm256_castsi128_si256(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes));
  const __m256 scaled = _mm256_cvtph_ps(_mm256_castsi256_si128(halves_of_e4m3(words)));
  return _mm256_mul_ps(scaled, _mm256_set1_ps(256.0f));
}

// The scales and zero points of some groups of a tile. Zero points that are all one are filled in once.
struct alignas(32) Groups {
  static constexpr int64_t kMost = 32;
  float scale[kMost][kTile], zero[kMost][kTile];

  explicit Groups(float constant) {
    for (float& value : zero[0]) value = constant;
  }

  void load(const qd_weight& weight, const Tile& tile, int64_t first, int64_t count) {
    const int64_t half = tile.width / 2;
    for (int64_t g = 0; g < count; ++g) {
      const char* const from = tile.scale + (first + g) * tile.scale_step;
      for (int64_t o = 0; o < tile.width; o += 8)
        _mm256_store_ps(scale[g] + o, load_scales(from, o, weight.scale_dtype));
      if (tile.zero == nullptr) continue;
      const uint8_t* const bytes = tile.zero + (first + g) * tile.zero_step;
      if (weight.zero_bits == 8) {
        for (int64_t o = 0; o < tile.width; o += 8) store(zero[g] + o, load_bytes(bytes + o));
        continue;
      }
      for (int64_t o = 0; o < half; o += 8) {
        const __m256i both = load_bytes(bytes + o);
        store(zero[g] + o, _mm256_and_si256(both, _mm256_set1_epi32(15)));
        store(zero[g] + o + half, _mm256_srli_epi32(both, 4));
      }
    }
  }

 private:
  static __m256i load_bytes(const uint8_t* bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
  static void store(float* to, __m256i values) { _mm256_store_ps(to, _mm256_cvtepi32_ps(values)); }
};

void convert(const char* from, int64_t count, int32_t dtype, float* to) {
  const int64_t size = dtype == QD_FP32 ? 4 : 2;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, load8(from + i * size, dtype));
  for (; i < count; ++i) to[i] = load_float(from, i, dtype);
}

// A row of x by position, fp32 [padded_k], padding 0. `spare`: memory for k more floats, of columns that move.
void expand(const Shape& shape, const char* row, int32_t dtype, float* out, float* spare) {
  const int64_t size = dtype == QD_FP32 ? 4 : 2, padded = shape.padded_group();
  if (shape.columns == nullptr && (padded == shape.group || shape.groups == 1)) {
    convert(row, shape.k, dtype, out);
    for (int64_t p = shape.k; p < shape.padded_k(); ++p) out[p] = 0.0f;
    return;
  }
  if (shape.columns) convert(row, shape.k, dtype, spare);
  for (int64_t g = 0; g < shape.groups; ++g, out += padded) {
    int64_t p = 0;
    if (shape.columns) {
      const int32_t* const columns = shape.columns + g * shape.group;
      for (; p < shape.group; ++p) out[p] = columns[p] < 0 ? 0.0f : spare[columns[p]];
    } else {
      p = shape.group_columns(g);
      convert(row + g * shape.group * size, p, dtype, out);
    }
    for (; p < padded; ++p) out[p] = 0.0f;
  }
}

__m128i bf16_of_floats(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

void store(const float* out, const float* bias, int64_t count, void* y, int32_t dtype) {
  int64_t o = 0;
  for (; o + 8 <= count; o += 8) {
    __m256 value = _mm256_loadu_ps(out + o);
    if (bias) value = _mm256_add_ps(value, _mm256_loadu_ps(bias + o));
    if (dtype == QD_FP32) {
      _mm256_storeu_ps(static_cast<float*>(y) + o, value);
      continue;
    }
    const __m128i words =
        dtype == QD_BF16 ? bf16_of_floats(value) : _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(y) + o), words);
  }
  const int64_t size = dtype == QD_FP32 ? 4 : 2;
  if (o < count) portable().store(out + o, bias ? bias + o : nullptr, count - o, static_cast<char*>(y) + o * size, dtype);
}
