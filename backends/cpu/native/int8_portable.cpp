// int8 activations in plain C++: for processors without kernels of their own, and to compare those with.
#include <string.h>

#include <algorithm>
#include <cmath>

#include "int8.h"

namespace qd {
namespace int8 {
namespace {

Order order(int32_t) { return kWords; }

// Sums of a tile's outputs, [kTile] a row.
size_t scratch(const Shape&, int64_t rows) { return 4 * static_cast<size_t>(rows * kTile); }

// sums[i][o] += a dword row times its columns of x.
void add_row(const Shape& shape, const uint32_t* codes, int64_t width, const Rows& x, int64_t begin, int64_t end,
             int64_t r, int32_t* sums) {
  const uint32_t mask = (1u << shape.slot_bits) - 1;
  for (int32_t j = 0; j < shape.slots; ++j) {
    int16_t even[kTile], odd[kTile];
    for (int64_t o = 0; o < width; ++o) {
      even[o] = static_cast<int16_t>((codes[o] >> (shape.slot_bits * j)) & mask);
      odd[o] = static_cast<int16_t>((codes[o] >> (16 + shape.slot_bits * j)) & mask);
    }
    for (int64_t i = begin; i < end; ++i) {
      const int16_t* const pair = x.words(i) + r * shape.dword_columns + 2 * j;
      int32_t* const sum = sums + (i - begin) * kTile;
      for (int64_t o = 0; o < width; ++o) sum[o] += even[o] * pair[0] + odd[o] * pair[1];
    }
  }
}

void tile(const Shape& shape, const Rows& x, int64_t begin, int64_t end, int64_t index, float* out, int64_t ld,
          void* memory) {
  const Tile tile(*shape.weight, shape, index);
  int32_t* const sums = static_cast<int32_t*>(memory);
  for (int64_t i = 0; i < end - begin; ++i) memset(out + i * ld, 0, static_cast<size_t>(tile.width) * 4);
  int64_t span = 0;
  for (int64_t g = 0; g < shape.groups; ++g)
    for (int64_t first = 0; first < shape.group_rows; first += shape.span_rows, ++span) {
      memset(sums, 0, static_cast<size_t>((end - begin) * kTile) * 4);
      const int64_t last = std::min(first + shape.span_rows, shape.group_rows);
      for (int64_t r = g * shape.group_rows + first; r < g * shape.group_rows + last; ++r)
        add_row(shape, tile.codes + r * tile.width, tile.width, x, begin, end, r, sums);
      for (int64_t o = 0; o < tile.width; ++o) {
        const float scale = load_float(tile.scale + g * tile.scale_step, o, shape.weight->scale_dtype);
        const int32_t zero = static_cast<int32_t>(zero_at(tile, shape, g, o));
        for (int64_t i = begin; i < end; ++i) {
          const int32_t sum = sums[(i - begin) * kTile + o] - zero * x.sums[i * shape.spans + span];
          out[(i - begin) * ld + o] += scale * static_cast<float>(sum);
        }
      }
    }
}

void range(const void* x, int32_t dtype, int64_t k, float* smallest, float* largest) {
  float low = load_float(x, 0, dtype), high = low;
  for (int64_t c = 0; c < k; ++c) {
    const float value = load_float(x, c, dtype);
    if (std::isnan(value)) low = high = value;  // and stays: no comparison with it holds
    if (value < low) low = value;
    if (value > high) high = value;
  }
  *smallest = low;
  *largest = high;
}

bool quantize(const void* x, int32_t dtype, int64_t k, const Quantizer& by, int16_t* codes) {
  bool nan = false;
  for (int64_t c = 0; c < k; ++c) {
    const float value = load_float(x, c, dtype);
    nan |= std::isnan(value);
    const float scaled = value / by.scale + by.zero;
    // A comparison with NaN holds for none: it becomes `low`.
    const float inside = scaled >= by.low ? (scaled <= by.high ? scaled : by.high) : by.low;
    codes[c] = static_cast<int16_t>(static_cast<int32_t>(std::nearbyint(inside)) - by.shift);
  }
  return nan;
}

void store(const float* values, int64_t count, float factor, const float* bias, void* y, int32_t dtype) {
  for (int64_t o = 0; o < count; ++o) {
    const float value = bias ? values[o] * factor + bias[o] : values[o] * factor;
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
  static const Isa isa{order, scratch, tile, range, quantize, store};
  return isa;
}

}  // namespace int8
}  // namespace qd
