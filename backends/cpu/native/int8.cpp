// qd_linear_int8: x is quantized row by row, then tiles of outputs are computed in parallel. int8.h says what the
// kernels of an instruction set do in it.
//
// Quantization follows numerics/activations.py step by step, so that codes are the same to the bit: fp32, true
// divisions, round half to even, scales of at least the smallest normal number. What has no finite scale, and a NaN
// under a stored one, makes its rows NaN.
#include "int8.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "threads.h"

namespace qd {
namespace int8 {
namespace {

// Rows of x that are multiplied with a tile at once: as many as the second cache holds the codes of, for they are read
// again for each tile. With fewer than the second number a tile would be read and unpacked for too little.
constexpr int64_t kBlockBytes = 320 << 10, kLeast = 24;
// Blocks are cut at multiples of the rows that the kernels take at a time.
constexpr int64_t kStep = 6;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const Isa& in_use() {
#if defined(__x86_64__)
  const int32_t isa = qd_isa();
  if (isa >= QD_AVX512) return avx512();
  if (isa == QD_AVX2) return avx2();
#endif
  return portable();
}

struct Range {
  float smallest, largest;
};

// A NaN stays one.
float at_least(float value, float bound) { return value < bound ? bound : value; }

Quantizer quantizer(const qd_inputs& inputs, Range range) {
  Quantizer by;
  by.high = static_cast<float>((1 << (inputs.bits - 1)) - 1);
  by.low = -1 - by.high;
  by.zero = 0;
  by.shift = 0;
  constexpr float tiny = std::numeric_limits<float>::min();
  if (!inputs.dynamic) {
    by.scale = inputs.scale;
    by.zero = inputs.symmetric ? 0 : inputs.zero_point;
  } else if (inputs.symmetric) {
    by.scale = at_least(at_least(range.largest, -range.smallest) / by.high, tiny);
  } else {
    const float top = at_least(range.largest, 0), bottom = -at_least(-range.smallest, 0);
    by.scale = at_least((top - bottom) / (2 * by.high + 1), tiny);
    const float zero = std::nearbyint(by.low - bottom / by.scale);
    by.zero = std::isnan(zero) ? 0 : std::min(std::max(zero, by.low), by.high);
  }
  return by;
}

// The call's rows and where their codes go.
struct Call {
  const Shape& shape;
  const qd_inputs& inputs;
  const Isa& isa;
  const qd::Rows x;
  int64_t m;
  Order order;
  bool shifted;     // some zero point of x may not be 0
  int64_t stride;   // of codes, bytes
  char* codes;      // [m] rows, and one of ones
  int32_t* sums;    // [m][spans]
  int32_t* zero;    // [m]
  float* scale;     // [m]
  Range* ranges;    // [m], of dynamic inputs with one scale in all
};

// Positions of the padded columns in one go, for any C and any padding.
template <class Put>
void each_position(const Shape& shape, Put&& put) {
  const int64_t padded = shape.padded_group();
  for (int64_t g = 0; g < shape.groups; ++g)
    for (int64_t p = 0; p < padded; ++p) put(g * padded + p, shape.column(g, p));
}

bool columns_are_positions(const Shape& shape) {
  return shape.columns == nullptr && shape.padded_k() == shape.k;
}

// Positions to the byte order of one dword row after another.
template <int kSlots>
void to_bytes_of(const int16_t* from, int64_t rows, int8_t* to) {
  constexpr int kSteps = (kSlots + 1) / 2;
  for (int64_t r = 0; r < rows; ++r, from += 2 * kSlots)
    for (int i = 0; i < kSteps; ++i, to += 4) {
      const bool two = i + kSteps < kSlots;
      to[0] = static_cast<int8_t>(from[2 * i]);
      to[1] = two ? static_cast<int8_t>(from[2 * (i + kSteps)]) : int8_t{0};
      to[2] = static_cast<int8_t>(from[2 * i + 1]);
      to[3] = two ? static_cast<int8_t>(from[2 * (i + kSteps) + 1]) : int8_t{0};
    }
}

void to_bytes(const Shape& shape, const int16_t* from, int8_t* to) {
  switch (shape.slots) {
    case 2: return to_bytes_of<2>(from, shape.rows, to);
    case 3: return to_bytes_of<3>(from, shape.rows, to);
    case 4: return to_bytes_of<4>(from, shape.rows, to);
    case 5: return to_bytes_of<5>(from, shape.rows, to);
    default: return to_bytes_of<8>(from, shape.rows, to);
  }
}

int64_t code_bytes(const Shape& shape, Order order) {
  return order == kWords ? 2 * shape.padded_k() : 4 * shape.steps * shape.rows;
}

// Sums over spans of what stands at the positions.
void sum_spans(const Shape& shape, const int16_t* values, int32_t* sums) {
  for (int64_t g = 0; g < shape.groups; ++g)
    for (int64_t r = 0; r < shape.group_rows; r += shape.span_rows) {
      const int64_t count = std::min(shape.span_rows, shape.group_rows - r) * shape.dword_columns;
      int32_t sum = 0;
      for (int64_t c = 0; c < count; ++c) sum += values[c];
      *sums++ = sum;
      values += count;
    }
}

// scratch: int16 [k] and, where columns are not positions, int16 [padded_k].
void quantize_row(const Call& call, int64_t i, Quantizer by, int16_t* scratch) {
  const Shape& shape = call.shape;
  const bool words = call.order == kWords, straight = columns_are_positions(shape);
  const int32_t zero = static_cast<int32_t>(by.zero);
  // Products with x less its zero point; in bytes that difference does not fit, and waits.
  by.shift = words ? zero : 0;
  char* const to = call.codes + i * call.stride;
  int16_t* const codes = words && straight ? reinterpret_cast<int16_t*>(to) : scratch;
  const bool nan = call.isa.quantize(call.x.row(i), call.x.dtype, shape.k, by, codes);
  const int16_t* positions = codes;
  if (!straight) {
    int16_t* const spread = words ? reinterpret_cast<int16_t*>(to) : scratch + shape.k;
    each_position(shape, [&](int64_t p, int64_t c) { spread[p] = c < 0 ? int16_t{0} : codes[c]; });
    positions = spread;
  }
  int32_t* const sums = call.sums + i * shape.spans;
  sum_spans(shape, positions, sums);
  if (!words) {
    to_bytes(shape, positions, reinterpret_cast<int8_t*>(to));
    call.zero[i] = zero;
    if (zero != 0)
      for (int64_t s = 0; s < shape.spans; ++s) sums[s] -= zero * (call.sums + call.m * shape.spans)[s];
  }
  call.scale[i] = nan || !std::isfinite(by.scale) ? kNan : by.scale;
}

// The row of ones, whose span sums are the numbers of columns.
void make_ones(const Call& call, int16_t* scratch) {
  const Shape& shape = call.shape;
  each_position(shape, [&](int64_t p, int64_t c) { scratch[p] = c >= 0; });
  to_bytes(shape, scratch, reinterpret_cast<int8_t*>(call.codes + call.m * call.stride));
  sum_spans(shape, scratch, call.sums + call.m * shape.spans);
}

Range range_of(const Call& call, int64_t i) {
  Range range;
  call.isa.range(call.x.row(i), call.x.dtype, call.shape.k, &range.smallest, &range.largest);
  return range;
}

// Of all rows; a NaN wins.
Range widest(const Call& call) {
  Range all = call.ranges[0];
  for (int64_t i = 1; i < call.m; ++i) {
    const Range& range = call.ranges[i];
    if (!(all.smallest <= range.smallest)) all.smallest = std::isnan(all.smallest) ? kNan : range.smallest;
    if (!(all.largest >= range.largest)) all.largest = std::isnan(all.largest) ? kNan : range.largest;
  }
  return all;
}

void quantize(const Call& call, int32_t threads) {
  const Shape& shape = call.shape;
  const size_t scratch = sizeof(int16_t) * static_cast<size_t>(shape.k + shape.padded_k());
  if (call.shifted && call.order == kBytes) make_ones(call, static_cast<int16_t*>(thread_memory(kUseInt8, scratch)));
  const bool one = call.inputs.dynamic && call.inputs.per_tensor;
  Range all{0, 0};
  if (one) {
    parallel_for(
        call.m, threads,
        [&](int64_t begin, int64_t end, int32_t) {
          for (int64_t i = begin; i < end; ++i) call.ranges[i] = range_of(call, i);
        },
        call.m * shape.k);
    all = widest(call);
  }
  parallel_for(
      call.m, threads,
      [&](int64_t begin, int64_t end, int32_t) {
        int16_t* const memory = static_cast<int16_t*>(thread_memory(kUseInt8, scratch));
        for (int64_t i = begin; i < end; ++i) {
          const bool own = call.inputs.dynamic && !one;
          quantize_row(call, i, quantizer(call.inputs, own ? range_of(call, i) : all), memory);
        }
      },
      call.m * shape.k * 2);
}

int64_t aligned(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }

struct Result {
  void* y;
  int64_t stride;
  int32_t dtype;
};

void multiply(const Call& call, Result result, int32_t threads) {
  const Shape& shape = call.shape;
  const qd_weight& weight = *shape.weight;
  const bool zeros = call.shifted && call.order == kBytes;
  const Rows rows{call.codes, call.stride, call.m, call.sums, zeros ? call.zero : nullptr,
                  zeros ? reinterpret_cast<const int8_t*>(call.codes + call.m * call.stride) : nullptr};
  const int64_t blocks = ceil_div(call.m, std::max(kBlockBytes / call.stride, kLeast));
  const int64_t block = ceil_div(ceil_div(call.m, blocks), kStep) * kStep;
  const int64_t size = result.dtype == QD_FP32 ? 4 : 2;
  const int64_t most = std::min(block, call.m);
  parallel_for(
      shape.tiles * blocks, threads,
      [&](int64_t first, int64_t last, int32_t) {
        float* const out = static_cast<float*>(thread_memory(kUseOut, sizeof(float) * static_cast<size_t>(most * kTile)));
        void* const scratch = thread_memory(kUseScratch, call.isa.scratch(shape, most));
        for (int64_t task = first; task < last; ++task) {
          const int64_t tile = task % shape.tiles;
          const int64_t begin = task / shape.tiles * block, end = std::min(begin + block, call.m);
          if (begin >= end) continue;
          call.isa.tile(shape, rows, begin, end, tile, out, kTile, scratch);
          const float* const bias = weight.bias ? weight.bias + tile * kTile : nullptr;
          for (int64_t i = begin; i < end; ++i)
            call.isa.store(out + (i - begin) * kTile, shape.outputs(tile), call.scale[i] * weight.unit, bias,
                           static_cast<char*>(result.y) + (i * result.stride + tile * kTile) * size, result.dtype);
        }
      },
      shape.padded_n * shape.rows * 4 * ceil_div(call.m, 4));
}

bool fits(const qd_weight& weight, const qd_inputs& inputs, int64_t m, int32_t dtype) {
  if (weight.format != QD_INT || weight.scale_dtype > QD_FP32) return false;
  if (m < 0 || dtype < QD_BF16 || dtype > QD_FP32 || inputs.bits < 2 || inputs.bits > 8) return false;
  const float high = static_cast<float>((1 << (inputs.bits - 1)) - 1);
  return inputs.dynamic || inputs.symmetric ||
         (inputs.zero_point >= -1 - high && inputs.zero_point <= high &&
          inputs.zero_point == std::nearbyint(inputs.zero_point));
}

void linear(const qd_weight& weight, const qd_inputs& inputs, const qd::Rows& x, int64_t m, Result result,
               int32_t threads) {
  const Shape shape(weight);
  const Isa& isa = in_use();
  const Order order = isa.order(shape.slot_bits);
  const bool shifted = !inputs.symmetric && (inputs.dynamic || inputs.zero_point != 0);
  int64_t stride = aligned(code_bytes(shape, order));
  // Rows a multiple of 4 KB apart would share the sets of the first cache.
  if (stride / 64 % 2 == 0) stride += 64;
  const int64_t bytes[] = {(m + 1) * stride, (m + 1) * shape.spans * 4, m * 4, m * 4,
                           m * static_cast<int64_t>(sizeof(Range))};
  int64_t total = 0;
  for (int64_t part : bytes) total += aligned(part);
  char* memory[5] = {static_cast<char*>(thread_memory(kUseWork, static_cast<size_t>(total)))};
  for (int part = 1; part < 5; ++part) memory[part] = memory[part - 1] + aligned(bytes[part - 1]);
  const Call call{shape, inputs, isa, x, m, order, shifted, stride, memory[0],
                  reinterpret_cast<int32_t*>(memory[1]), reinterpret_cast<int32_t*>(memory[2]),
                  reinterpret_cast<float*>(memory[3]), reinterpret_cast<Range*>(memory[4])};
  quantize(call, threads);
  multiply(call, result, threads);
}

}  // namespace
}  // namespace int8
}  // namespace qd

extern "C" int32_t qd_linear_int8(const qd_weight* weight, const qd_inputs* inputs, const void* x, int64_t m,
                                  int64_t x_stride, void* y, int64_t y_stride, int32_t dtype, int32_t threads) {
  using namespace qd::int8;
  if (!weight || !inputs || !x || !y || !weight->packed || !weight->scale || (weight->zero_bits && !weight->zero))
    return -1;
  if (const int32_t error = qd::check(*weight)) return error;
  const int32_t result = dtype & QD_WIDE ? QD_FP32 : dtype;
  dtype &= ~QD_WIDE;
  if (!fits(*weight, *inputs, m, dtype)) return -4;
  if (m == 0) return 0;
  try {
    linear(*weight, *inputs, qd::Rows{x, x_stride, dtype, nullptr}, m, Result{y, y_stride, result},
           std::max(threads, 1));
    return 0;
  } catch (...) {  // no memory
    return -9;
  }
}
