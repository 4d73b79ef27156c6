// Kernels in plain C++, for processors that no other file serves: a span of a tile is decoded to fp32 and multiplied.
#include "kernels.h"

namespace qd {
namespace {

constexpr int64_t kPanel = 256;
constexpr int kRows = 4, kOutputs = 8;  // of the innermost product: what 16 registers of 4 floats hold

struct Values {
  float fp4[16], fp8[256];
  Values() {
    for (uint32_t i = 0; i < 16; ++i) fp4[i] = float_of_fp4(i);
    for (int i = 0; i < 256; ++i) fp8[i] = float_of_e4m3(static_cast<uint8_t>(i));
  }
};

const Values& values() {
  static const Values made;
  return made;
}

Work plan(const Shape& shape, int64_t m, int32_t dtype) {
  Work work{};
  work.m = m;
  work.dtype = dtype;
  work.step = 32;
  work.bytes = static_cast<size_t>(m * shape.padded_k()) * sizeof(float);
  work.scratch = static_cast<size_t>(shape.span_rows * shape.dword_columns * kTile) * sizeof(float);
  return work;
}

// x as fp32 [m][padded_k].
void prepare(const Shape& shape, const Rows& x, int64_t begin, int64_t end, const Work& work) {
  float* const rows = reinterpret_cast<float*>(work.data);
  const int64_t width = shape.padded_group();
  for (int64_t i = begin; i < end; ++i) {
    const char* const row = x.row(i);
    float* out = rows + i * shape.padded_k();
    for (int64_t g = 0; g < shape.groups; ++g)
      for (int64_t p = 0; p < width; ++p, ++out) {
        const int64_t c = shape.column(g, p);
        *out = c < 0 ? 0.0f : load_float(row, c, x.dtype);
      }
  }
}

// A group's scales and zero points of a tile.
struct Group {
  float scale[kTile], zero[kTile];

  void load(const qd_weight& weight, const Shape& shape, const Tile& tile, int64_t g) {
    for (int64_t o = 0; o < tile.width; ++o) {
      scale[o] = load_float(tile.scale + g * tile.scale_step, o, weight.scale_dtype) * weight.unit;
      zero[o] = static_cast<float>(zero_at(tile, shape, g, o));
    }
  }
};

// The weights of dword rows [first, last), fp32 [columns][kTile].
void decode(const Shape& shape, const Tile& tile, const Group& group, int64_t first, int64_t last, float* out) {
  const uint32_t mask = (1u << shape.slot_bits) - 1;
  const float* const table = shape.format == QD_FP4 ? values().fp4 : values().fp8;
  for (int64_t r = first; r < last; ++r) {
    const uint32_t* const codes = tile.codes + r * tile.width;
    for (int64_t c = 0; c < shape.dword_columns; ++c, out += kTile) {
      const int shift = static_cast<int>((c & 1) * 16 + (c >> 1) * shape.slot_bits);
      if (shape.format == QD_INT) {
        for (int64_t o = 0; o < tile.width; ++o)
          out[o] = (static_cast<float>(static_cast<int32_t>((codes[o] >> shift) & mask)) - group.zero[o]) * group.scale[o];
      } else {
        for (int64_t o = 0; o < tile.width; ++o) out[o] = table[(codes[o] >> shift) & mask] * group.scale[o];
      }
    }
  }
}

// out[i][o] += sum over c of x[i][c] * weight[c][o]
template <int N>
void multiply(const float* x, int64_t x_stride, const float* weight, int64_t columns, float* out, int64_t ld) {
  float sum[N][kOutputs] = {};
  for (int64_t c = 0; c < columns; ++c)
    for (int i = 0; i < N; ++i)
      for (int o = 0; o < kOutputs; ++o) sum[i][o] += x[i * x_stride + c] * weight[c * kTile + o];
  for (int i = 0; i < N; ++i)
    for (int o = 0; o < kOutputs; ++o) out[i * ld + o] += sum[i][o];
}

void tile(const qd_weight& weight, const Shape& shape, const Work& work, int64_t begin, int64_t end, int64_t t,
          float* out, int64_t ld, void* scratch, const Next&) {
  const Tile part(weight, shape, t);
  float* const decoded = static_cast<float*>(scratch);
  const float* const x = reinterpret_cast<const float*>(work.data) + begin * shape.padded_k();
  const int64_t m = end - begin, stride = shape.padded_k();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < part.width; ++o) out[i * ld + o] = 0.0f;
  Group group;
  for (int64_t g = 0; g < shape.groups; ++g) {
    group.load(weight, shape, part, g);
    const int64_t stop = (g + 1) * shape.group_rows;
    for (int64_t r = g * shape.group_rows; r < stop; r += shape.span_rows) {
      const int64_t last = r + shape.span_rows < stop ? r + shape.span_rows : stop;
      decode(shape, part, group, r, last, decoded);
      const float* const from = x + r * shape.dword_columns;
      const int64_t columns = (last - r) * shape.dword_columns;
      for (int64_t o = 0; o < part.width; o += kOutputs) {
        int64_t i = 0;
        for (; i + kRows <= m; i += kRows)
          multiply<kRows>(from + i * stride, stride, decoded + o, columns, out + i * ld + o, ld);
        for (; i < m; ++i) multiply<1>(from + i * stride, stride, decoded + o, columns, out + i * ld + o, ld);
      }
    }
  }
}

void store(const float* out, const float* bias, int64_t count, void* y, int32_t dtype) {
  for (int64_t o = 0; o < count; ++o) {
    const float value = bias ? out[o] + bias[o] : out[o];
    if (dtype == QD_BF16) {
      static_cast<uint16_t*>(y)[o] = bf16_of_float(value);
    } else if (dtype == QD_FP16) {
      static_cast<uint16_t*>(y)[o] = fp16_of_float(value);
    } else {
      static_cast<float*>(y)[o] = value;
    }
  }
}

}  // namespace

const Isa& portable() {
  static const Isa isa{kPanel, INT64_MAX, plan, prepare, tile, store};
  return isa;
}

}  // namespace qd
