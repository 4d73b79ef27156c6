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

// Spans of x that lie side by side: [columns][M] times 2^-excess, and the sums of each span's columns [M].
struct Spans {
  const float* x;
  const float* sums;
  int64_t count, rows;  // spans, dword rows of each
};

// Memory that is asked for meanwhile, a line of 64 bytes for every 16 outputs of a dword row. One stream of lines is
// fetched at most of the rate that memory has, several at once at nearly all of it: so it is the four quarters of the
// next tile, and of the last tile what comes next in it.
struct Ahead {
  const char* at;
  int64_t line, row;  // bytes from one line to the next, and from one dword row to the next
};

// Of a tile, the vectors that a call works on.
struct Outputs {
  const uint32_t* codes;  // of the first span's first dword row
  int64_t width;
  const float *scale, *zero;  // a span's are kTile further than the last one's; zero null: all are the format's
  float* y;
  int64_t ld;
  Ahead ahead;
};

// Sums of which a column adds to one: enough that no addition waits for the one before.
constexpr int chains_of(int rows, int vectors) { return rows * vectors < 8 ? 2 : 1; }

template <class Code, int Field, int C, int M, int V, int Chains>
QD_INLINE void add_column(const __m256i* field, const float* x, __m256 (&sum)[Chains][M][V]) {
  if constexpr (C < Code::kColumns) {
    if constexpr (Code::field(C) == Field) {
      __m256 value[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) value[v] = Code::template value<C>(field[v]);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const __m256 factor = _mm256_broadcast_ss(x + C * M + i);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[C % Chains][i][v] = _mm256_fmadd_ps(value[v], factor, sum[C % Chains][i][v]);
      }
    }
    add_column<Code, Field, C + 1, M, V, Chains>(field, x, sum);
  }
}

// One row of x times eight vectors, whose codes are read anew for each column: the sums need the registers.
template <class Code, int C, int V>
QD_INLINE void add_wide(const uint32_t* codes, const float* x, __m256 (&sum)[V]) {
  if constexpr (C < Code::kColumns) {
    const __m256 factor = _mm256_broadcast_ss(x + C);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const __m256i field = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * v));
      sum[v] = _mm256_fmadd_ps(Code::template value<C>(field), factor, sum[v]);
    }
    add_wide<Code, C + 1, V>(codes, x, sum);
  }
}

template <class Code, int Field, int M, int V, int Chains>
QD_INLINE void add_fields(const uint32_t* codes, const float* x, __m256 (&sum)[Chains][M][V]) {
  if constexpr (Field < Code::kFields) {
    __m256i field[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      field[v] = Code::template turn<Field>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * v)));
    add_column<Code, Field, 0, M, V, Chains>(field, x, sum);
    add_fields<Code, Field + 1, M, V, Chains>(codes, x, sum);
  }
}

template <int V>
QD_INLINE void fetch(Ahead& ahead) {
#pragma GCC unroll 4
  for (int line = 0; line < V / 2; ++line) _mm_prefetch(ahead.at + line * ahead.line, _MM_HINT_T0);
  ahead.at += ahead.row;
}

QD_INLINE void add_scaled(const float* scale, __m256 sum, float* y) {
  _mm256_storeu_ps(y, _mm256_fmadd_ps(_mm256_load_ps(scale), sum, _mm256_loadu_ps(y)));
}

template <class Code>
struct Integers {
  static constexpr bool kPairs = false;
  static constexpr int kVectors = Code::kFields == 1 ? 8 : 4;  // for one row of x
  static float unit() { return Code::kUnit; }

  template <int M, int V>
  static void add(const Spans& spans, const Outputs& to) {
    constexpr int chains = chains_of(M, V);
    const uint32_t* codes = to.codes;
    const float *x = spans.x, *sums = spans.sums, *scale = to.scale, *zero = to.zero;
    Ahead ahead = to.ahead;
    for (int64_t s = 0; s < spans.count; ++s, sums += M, scale += kTile) {
      __m256 sum[chains][M][V];
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const __m256 factor = _mm256_set1_ps(-sums[i]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          sum[0][i][v] = _mm256_mul_ps(zero ? _mm256_load_ps(zero + 8 * v) : _mm256_set1_ps(Code::zero()), factor);
#pragma GCC unroll 8
          for (int chain = 1; chain < chains; ++chain) sum[chain][i][v] = _mm256_setzero_ps();
        }
      }
      if (zero) zero += kTile;
      for (int64_t r = 0; r < spans.rows; ++r, codes += to.width, x += Code::kColumns * M) {
        fetch<V>(ahead);
        if constexpr (V > 4) {
          add_wide<Code, 0, V>(codes, x, sum[0][0]);
        } else {
          add_fields<Code, 0, M, V, chains>(codes, x, sum);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          if constexpr (chains > 1) sum[0][i][v] = _mm256_add_ps(sum[0][i][v], sum[chains - 1][i][v]);
          add_scaled(scale + 8 * v, sum[0][i][v], to.y + i * to.ld + 8 * v);
        }
    }
  }
};

// e4m3 as fp16 times 2^-8. A vector's lanes are an output's even and odd column, for eight outputs two vectors.
struct Fp8 {
  static constexpr bool kPairs = true;
  static constexpr int kVectors = 4;
  static float unit() { return 256.0f; }

  template <int M, int V>
  static void add(const Spans& spans, const Outputs& to) {
    const uint32_t* codes = to.codes;
    const float *x = spans.x, *scale = to.scale;
    Ahead ahead = to.ahead;
    for (int64_t s = 0; s < spans.count; ++s, scale += kTile) {
      __m256 low[M][V], high[M][V];
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) low[i][v] = high[i][v] = _mm256_setzero_ps();
      for (int64_t r = 0; r < spans.rows; ++r, codes += to.width, x += 4 * M) {
        fetch<V>(ahead);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          const __m256i dwords = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * v));
#pragma GCC unroll 8
          for (int j = 0; j < 2; ++j) {
            const __m256i halves = halves_of_e4m3(j ? dwords : _mm256_slli_epi16(dwords, 8));
            const __m256 first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            const __m256 second = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#pragma GCC unroll 8
            for (int i = 0; i < M; ++i) {
              const __m256 factor =
                  _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x + (j * M + i) * 2)));
              low[i][v] = _mm256_fmadd_ps(first, factor, low[i][v]);
              high[i][v] = _mm256_fmadd_ps(second, factor, high[i][v]);
            }
          }
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          const __m256 even = _mm256_shuffle_ps(low[i][v], high[i][v], 0x88);
          const __m256 odd = _mm256_shuffle_ps(low[i][v], high[i][v], 0xdd);
          const __m256d sum = _mm256_castps_pd(_mm256_add_ps(even, odd));
          add_scaled(scale + 8 * v, _mm256_castpd_ps(_mm256_permute4x64_pd(sum, 0xd8)), to.y + i * to.ld + 8 * v);
        }
    }
  }
};

// All outputs of a tile: V vectors at a time, then two.
template <class Kernel, int M, int V>
void add_outputs(const Spans& spans, Outputs to) {
  for (int64_t left = to.width; left > 0;) {
    const int64_t step = left >= 8 * V ? 8 * V : 16;
    if (step == 8 * V) {
      Kernel::template add<M, V>(spans, to);
    } else {
      Kernel::template add<M, 2>(spans, to);
    }
    to.codes += step, to.scale += step, to.y += step, to.ahead.at += step / 16 * to.ahead.line;
    if (to.zero) to.zero += step;
    left -= step;
  }
}

template <class Kernel>
void add_rows(int64_t rows, const Spans& spans, const Outputs& to) {
  switch (rows) {
    case 1: return add_outputs<Kernel, 1, Kernel::kVectors>(spans, to);
    case 2: return add_outputs<Kernel, 2, Kernel::kPairs ? 2 : 4>(spans, to);
    case 3: return add_outputs<Kernel, 3, 2>(spans, to);
    case 4: return add_outputs<Kernel, 4, 2>(spans, to);
    case 5: return add_outputs<Kernel, 5, 2>(spans, to);
    default: return add_outputs<Kernel, 6, 2>(spans, to);
  }
}

// What to fetch while a tile's dword rows from `row` on are worked on for the first time.
inline Ahead ahead_of(const Shape& shape, const Tile& tile, const char* next, int64_t row) {
  if (next != nullptr && tile.width == kTile) return {next + row * 64, shape.rows * 64, 64};
  const int64_t bytes = tile.width * 4;
  return {reinterpret_cast<const char*>(tile.codes) + row * bytes + kAhead, 64, bytes};
}

inline const char* codes_of(const Next& next) {
  if (next.weight == nullptr) return nullptr;
  return reinterpret_cast<const char*>(next.weight->packed + next.tile * kTile * next.shape->rows);
}

inline void fetch_lines(const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(static_cast<const char*>(from) + at, _MM_HINT_T0);
}

// Scales and zero points of `count` groups.
inline void fetch_groups(const Tile& tile, int64_t first, int64_t count) {
  fetch_lines(tile.scale + first * tile.scale_step, count * tile.scale_step);
  if (tile.zero) fetch_lines(tile.zero + first * tile.zero_step, count * tile.zero_step);
}

template <class Kernel>
void few_rows(const qd_weight& weight, const Shape& shape, const Few& few, int64_t m, int64_t t, float zero, float* out,
              int64_t ld, const Next& next) {
  const Tile tile(weight, shape, t);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < tile.width; o += 8) _mm256_store_ps(out + i * ld + o, _mm256_setzero_ps());
  Groups groups(zero);
  // As many groups at a time as a span has columns, so that what is read for one block of rows is there for the next.
  const int64_t together = std::clamp<int64_t>(kSpan / shape.padded_group(), 1, Groups::kMost);
  const char* const after = codes_of(next);
  for (int64_t g = 0; g < shape.groups; g += together) {
    const int64_t count = std::min(together, shape.groups - g);
    groups.load(weight, tile, g, count);
    if (g + count < shape.groups) {
      fetch_groups(tile, g + count, std::min(together, shape.groups - g - count));
    } else if (next.weight) {
      fetch_groups(Tile(*next.weight, *next.shape, next.tile), 0, std::min(together, next.shape->groups));
    }
    for (int64_t r = 0, s = 0; r < shape.group_rows; r += shape.span_rows, ++s) {
      const int64_t row = g * shape.group_rows + r, span = g * shape.spans_per_group + s;
      const int64_t rows = std::min(shape.span_rows, shape.group_rows - r);
      for (int64_t i = 0; i < m; i += few.height) {
        const int64_t height = std::min(few.height, m - i);
        const Spans spans{few.x + i * shape.padded_k() + row * shape.dword_columns * height,
                          few.sums + i * shape.spans() + span * height, count, rows};
        add_rows<Kernel>(height, spans,
                         {tile.codes + row * tile.width, tile.width, groups.scale[0],
                          tile.zero ? groups.zero[0] : nullptr, out + i * ld, ld,
                          i == 0 ? ahead_of(shape, tile, after, row) : Ahead{reinterpret_cast<const char*>(out), 0, 0}});
      }
    }
  }
  const __m256 unit = _mm256_set1_ps(weight.unit * Kernel::unit());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < tile.width; o += 8)
      _mm256_store_ps(out + i * ld + o, _mm256_mul_ps(_mm256_load_ps(out + i * ld + o), unit));
}
