// Of avx2.cpp: many rows of x. A block of a tile is decoded to fp32 in cache, and multiplied by a 6 x 16 product.
// clang-format off: this is no header of its own

// Eight outputs of a column, scaled: value * scale - zero * scale.
struct Scaled {
  __m256 scale, shift;
};

template <class Code, int Field, int C>
QD_INLINE void decode_columns(__m256i field, const Scaled& by, float* out) {
  if constexpr (C < Code::kColumns) {
    if constexpr (Code::field(C) == Field) {
      constexpr int bits = std::is_same<Code, Fp4>::value ? 8 : 16 / Code::kSlots, place = Code::position(C);
      __m256i code = place ? _mm256_srli_epi32(field, place) : field;
      if constexpr (place + bits < 32) code = _mm256_and_si256(code, _mm256_set1_epi32((1 << bits) - 1));
      _mm256_store_ps(out + C * 16, _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), by.scale, by.shift));
    }
    decode_columns<Code, Field, C + 1>(field, by, out);
  }
}

// Eight outputs of a dword row into columns of 16.
template <class Code>
struct DecodeIntegers {
  static float unit() { return Code::kUnit; }

  static void row(const uint32_t* codes, const Scaled& by, float* out) {
    const __m256i dwords = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    decode_columns<Code, 0, 0>(Code::template turn<0>(dwords), by, out);
    if constexpr (Code::kFields > 1) decode_columns<Code, 1, 0>(Code::template turn<1>(dwords), by, out);
  }
};

struct DecodeFp8 {
  static float unit() { return 256.0f; }

  static void row(const uint32_t* codes, const Scaled& by, float* out) {
    // outputs 0 1 4 5 2 3 6 7: the shuffles below bring halves of both vectors together
    const __m256i dwords =
        _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), 0xd8);
    for (int j = 0; j < 2; ++j) {
      const __m256i halves = halves_of_e4m3(j ? dwords : _mm256_slli_epi16(dwords, 8));
      const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
      _mm256_store_ps(out + (2 * j) * 16, _mm256_mul_ps(_mm256_shuffle_ps(low, high, 0x88), by.scale));
      _mm256_store_ps(out + (2 * j + 1) * 16, _mm256_mul_ps(_mm256_shuffle_ps(low, high, 0xdd), by.scale));
    }
  }
};

// Dword rows [first, last) of a tile: for each 16 outputs [columns][16], one after another.
template <class Decode>
void decode_block(const qd_weight& weight, const Shape& shape, const Tile& tile, int64_t first, int64_t last,
                  Groups& groups, float* out) {
  const int64_t columns = (last - first) * shape.dword_columns;
  const __m256 unit = _mm256_set1_ps(weight.unit * Decode::unit());
  for (int64_t r = first; r < last;) {
    const int64_t g = r / shape.group_rows, stop = std::min(last, (g + 1) * shape.group_rows);
    groups.load(weight, tile, g, 1);
    for (int64_t o = 0; o < tile.width; o += 8) {
      Scaled by;
      by.scale = _mm256_mul_ps(_mm256_load_ps(groups.scale[0] + o), unit);
      by.shift = _mm256_xor_ps(_mm256_mul_ps(_mm256_load_ps(groups.zero[0] + o), by.scale), _mm256_set1_ps(-0.0f));
      float* to = out + o / 16 * 16 * columns + (r - first) * shape.dword_columns * 16 + o % 16;
      for (int64_t i = r; i < stop; ++i, to += shape.dword_columns * 16)
        Decode::row(tile.codes + i * tile.width + o, by, to);
    }
    r = stop;
  }
}

// y[i][o] += sum over c of x[c][i] * weight[c][o] for 16 outputs.
template <int M>
void multiply(const float* x, const float* weight, int64_t columns, float* y, int64_t ld) {
  __m256 low[M], high[M];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) low[i] = high[i] = _mm256_setzero_ps();
  for (int64_t c = 0; c < columns; ++c, x += M, weight += 16) {
    const __m256 first = _mm256_load_ps(weight), second = _mm256_load_ps(weight + 8);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const __m256 factor = _mm256_broadcast_ss(x + i);
      low[i] = _mm256_fmadd_ps(factor, first, low[i]);
      high[i] = _mm256_fmadd_ps(factor, second, high[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
    float* const to = y + i * ld;
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), low[i]));
    _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(to + 8), high[i]));
  }
}

void multiply_rows(int64_t rows, const float* x, const float* weight, int64_t columns, float* y, int64_t ld) {
  switch (rows) {
    case 1: return multiply<1>(x, weight, columns, y, ld);
    case 2: return multiply<2>(x, weight, columns, y, ld);
    case 3: return multiply<3>(x, weight, columns, y, ld);
    case 4: return multiply<4>(x, weight, columns, y, ld);
    case 5: return multiply<5>(x, weight, columns, y, ld);
    default: return multiply<6>(x, weight, columns, y, ld);
  }
}

// Rows [begin, end) of x, which is [m / height][padded_k][height] (the last of fewer rows).
template <class Decode>
void many_rows(const qd_weight& weight, const Shape& shape, const Many& many, int64_t begin, int64_t end, int64_t t,
               float zero, float* out, int64_t ld, float* decoded) {
  const Tile tile(weight, shape, t);
  for (int64_t i = 0; i < end - begin; ++i)
    for (int64_t o = 0; o < tile.width; o += 8) _mm256_store_ps(out + i * ld + o, _mm256_setzero_ps());
  Groups groups(zero);
  const int64_t step = block_rows(shape);
  for (int64_t r = 0; r < shape.rows; r += step) {
    const int64_t last = std::min(r + step, shape.rows), columns = (last - r) * shape.dword_columns;
    decode_block<Decode>(weight, shape, tile, r, last, groups, decoded);
    for (int64_t o = 0; o < tile.width; o += 16)
      for (int64_t i = begin; i < end; i += many.height) {
        const int64_t height = std::min(many.height, many.m - i);
        const float* const x = many.x + i * shape.padded_k() + r * shape.dword_columns * height;
        multiply_rows(height, x, decoded + o * columns, columns, out + (i - begin) * ld + o, ld);
      }
  }
}
