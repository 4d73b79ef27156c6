// Of avx2.cpp: few rows of x. Codes become fp32 in registers, each as an integer times a power of two that the prepared
// x takes away again; scales and zero points are applied to the sums of a span.
// clang-format off: this is no header of its own

// How a dword's codes become fp32. fields: vectors a dword is turned into; a field's columns are `slots` apart.
template <int Bits>
struct Int {
  static constexpr int kSlots = 16 / Bits, kColumns = 2 * kSlots, kFields = 1;
  static constexpr float kUnit = 1.0f;
  static constexpr float zero() { return static_cast<float>(1 << (Bits - 1)); }
  static constexpr int field(int) { return 0; }
  static constexpr int position(int c) { return (c & 1) * 16 + (c >> 1) * Bits; }
  // What a column's value is times too large. The topmost cannot stay where it is: it would be the sign.
  static constexpr int excess(int c) { return position(c) + Bits == 32 ? 0 : position(c); }
  template <int>
  static __m256i turn(__m256i codes) {
    return codes;
  }
  template <int C>
  static __m256 value(__m256i codes) {
    if constexpr (position(C) + Bits == 32) return _mm256_cvtepi32_ps(_mm256_srli_epi32(codes, 32 - Bits));
    constexpr int mask = static_cast<int>(((1u << Bits) - 1) << (position(C) & 31));
    return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(mask)));
  }
};

// Twice the value plus 12 is an integer of 0..24: a byte table turns nibbles into those, four of a dword at a time.
struct Fp4 {
  static constexpr int kSlots = 4, kColumns = 8, kFields = 2;
  static constexpr float kUnit = 0.5f;
  static constexpr float zero() { return 12.0f; }
  static constexpr int nibble(int c) { return (c & 1) * 4 + (c >> 1); }
  static constexpr int field(int c) { return nibble(c) & 1; }
  static constexpr int position(int c) { return nibble(c) / 2 * 8; }
  static constexpr int excess(int c) { return position(c) == 24 ? 0 : position(c); }
  template <int Field>
  static __m256i turn(__m256i codes) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i low = _mm256_and_si256(Field ? _mm256_srli_epi32(codes, 4) : codes, _mm256_set1_epi8(15));
    return _mm256_shuffle_epi8(table, low);
  }
  template <int C>
  static __m256 value(__m256i bytes) {
    if constexpr (position(C) == 24) return _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 24));
    return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(static_cast<int>(0xffu << position(C)))));
  }
};

// A span of x: [columns][Rows] times 2^-excess, and the sums of its columns [Rows].
struct Span {
  const float* x;
  const float* sums;
  int64_t rows;  // of dwords
};

// Of a tile, the vectors that a call works on.
struct Outputs {
  const uint32_t* codes;  // of the span's first dword row
  int64_t width;
  const float *scale, *zero;
  float* y;
  int64_t ld;
};

template <class Code, int Field, int C, int M, int V>
QD_INLINE void add_column(const __m256i* field, const float* x, __m256 (&sum)[M][V]) {
  if constexpr (C < Code::kColumns) {
    if constexpr (Code::field(C) == Field) {
      __m256 value[V];
      for (int v = 0; v < V; ++v) value[v] = Code::template value<C>(field[v]);
      for (int i = 0; i < M; ++i) {
        const __m256 factor = _mm256_broadcast_ss(x + C * M + i);
        for (int v = 0; v < V; ++v) sum[i][v] = _mm256_fmadd_ps(value[v], factor, sum[i][v]);
      }
    }
    add_column<Code, Field, C + 1, M, V>(field, x, sum);
  }
}

template <class Code, int Field, int M, int V>
QD_INLINE void add_fields(const uint32_t* codes, const float* x, __m256 (&sum)[M][V]) {
  if constexpr (Field < Code::kFields) {
    __m256i field[V];
    for (int v = 0; v < V; ++v)
      field[v] = Code::template turn<Field>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * v)));
    add_column<Code, Field, 0, M, V>(field, x, sum);
    add_fields<Code, Field + 1, M, V>(codes, x, sum);
  }
}

template <class Code>
struct Integers {
  static constexpr int kUnroll = 0;
  static float unit() { return Code::kUnit; }

  template <int M, int V>
  static void add(const Span& span, const Outputs& to) {
    __m256 sum[M][V];
    for (int v = 0; v < V; ++v) {
      const __m256 zero = _mm256_xor_ps(_mm256_load_ps(to.zero + 8 * v), _mm256_set1_ps(-0.0f));
      for (int i = 0; i < M; ++i) sum[i][v] = _mm256_mul_ps(zero, _mm256_broadcast_ss(span.sums + i));
    }
    const uint32_t* codes = to.codes;
    const float* x = span.x;
    for (int64_t r = 0; r < span.rows; ++r, codes += to.width, x += Code::kColumns * M) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T0);
      if constexpr (V > 2) _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + 16), _MM_HINT_T0);
      if constexpr (V > 4) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + 32), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + 48), _MM_HINT_T0);
      }
      add_fields<Code, 0, M, V>(codes, x, sum);
    }
    for (int i = 0; i < M; ++i)
      for (int v = 0; v < V; ++v) {
        float* const y = to.y + i * to.ld + 8 * v;
        _mm256_storeu_ps(y, _mm256_fmadd_ps(_mm256_load_ps(to.scale + 8 * v), sum[i][v], _mm256_loadu_ps(y)));
      }
  }
};

// e4m3 as fp16 times 2^-8. A vector's lanes are an output's even and odd column, for eight outputs two vectors.
struct Fp8 {
  static float unit() { return 256.0f; }

  template <int M, int V>
  static void add(const Span& span, const Outputs& to) {
    __m256 sum[M][V][2];
    for (int i = 0; i < M; ++i)
      for (int v = 0; v < V; ++v) sum[i][v][0] = sum[i][v][1] = _mm256_setzero_ps();
    const uint32_t* codes = to.codes;
    const float* x = span.x;
    for (int64_t r = 0; r < span.rows; ++r, codes += to.width, x += 4 * M) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T0);
      if constexpr (V > 2) _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + 16), _MM_HINT_T0);
      for (int v = 0; v < V; ++v) {
        const __m256i dwords = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * v));
        for (int j = 0; j < 2; ++j) {
          const __m256i halves = halves_of_e4m3(j ? dwords : _mm256_slli_epi16(dwords, 8));
          const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
          const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
          for (int i = 0; i < M; ++i) {
            const __m256 factor = _mm256_castpd_ps(
                _mm256_broadcast_sd(reinterpret_cast<const double*>(x + (j * M + i) * 2)));
            sum[i][v][0] = _mm256_fmadd_ps(low, factor, sum[i][v][0]);
            sum[i][v][1] = _mm256_fmadd_ps(high, factor, sum[i][v][1]);
          }
        }
      }
    }
    for (int i = 0; i < M; ++i)
      for (int v = 0; v < V; ++v) {
        const __m256 even = _mm256_shuffle_ps(sum[i][v][0], sum[i][v][1], 0x88);
        const __m256 odd = _mm256_shuffle_ps(sum[i][v][0], sum[i][v][1], 0xdd);
        const __m256 both = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_add_ps(even, odd)), 0xd8));
        float* const y = to.y + i * to.ld + 8 * v;
        _mm256_storeu_ps(y, _mm256_fmadd_ps(_mm256_load_ps(to.scale + 8 * v), both, _mm256_loadu_ps(y)));
      }
  }
};

// All outputs of a tile: V vectors at a time, then two.
template <class Kernel, int M, int V>
void add_outputs(const Span& span, Outputs to) {
  int64_t left = to.width;
  while (left > 0) {
    const int64_t step = left >= 8 * V ? 8 * V : 16;
    if (step == 8 * V) {
      Kernel::template add<M, V>(span, to);
    } else {
      Kernel::template add<M, 2>(span, to);
    }
    to.codes += step, to.scale += step, to.zero += step, to.y += step;
    left -= step;
  }
}

template <class Kernel>
void add_rows(int64_t rows, const Span& span, const Outputs& to) {
  constexpr bool pairs = std::is_same<Kernel, Fp8>::value;
  switch (rows) {
    case 1: return add_outputs<Kernel, 1, pairs ? 4 : kVectors>(span, to);
    case 2: return add_outputs<Kernel, 2, pairs ? 2 : 4>(span, to);
    case 3: return add_outputs<Kernel, 3, pairs ? 2 : 4>(span, to);
    case 4: return add_outputs<Kernel, 4, 2>(span, to);
    case 5: return add_outputs<Kernel, 5, 2>(span, to);
    default: return add_outputs<Kernel, 6, 2>(span, to);
  }
}

template <class Kernel>
void few_rows(const qd_weight& weight, const Shape& shape, const Few& few, int64_t m, int64_t t, float zero, float* out,
              int64_t ld) {
  const Tile tile(weight, shape, t);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < tile.width; o += 8) _mm256_store_ps(out + i * ld + o, _mm256_setzero_ps());
  Group group(zero);
  for (int64_t g = 0, s = 0; g < shape.groups; ++g) {
    group.load(weight, tile, g);
    for (int64_t r = 0; r < shape.group_rows; r += shape.span_rows, ++s) {
      const int64_t row = g * shape.group_rows + r, rows = std::min(shape.span_rows, shape.group_rows - r);
      for (int64_t i = 0; i < m; i += few.height) {
        const int64_t height = std::min(few.height, m - i);
        const Span span{few.x + i * shape.padded_k() + row * shape.dword_columns * height,
                        few.sums + i * shape.spans() + s * height, rows};
        add_rows<Kernel>(height, span,
                         {tile.codes + row * tile.width, tile.width, group.scale, group.zero, out + i * ld, ld});
      }
    }
  }
  const __m256 unit = _mm256_set1_ps(weight.unit * Kernel::unit());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < tile.width; o += 8)
      _mm256_store_ps(out + i * ld + o, _mm256_mul_ps(_mm256_load_ps(out + i * ld + o), unit));
}
