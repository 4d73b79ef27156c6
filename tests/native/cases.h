// Random layers for the drivers, and what they compute in double precision, written apart from the library.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <vector>

#include "../../backends/cpu/native/abi.h"

using Random = std::mt19937;

inline int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}
inline double uniform(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

inline float of_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// Normal numbers are all that is needed here.
inline float of_fp16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double size = exponent ? ldexp(1024 + (bits & 1023), exponent - 25) : ldexp(bits & 1023, -24);
  return static_cast<float>(bits & 0x8000 ? -size : size);
}
inline uint16_t to_fp16(float value) {
  int exponent;
  const double fraction = frexp(fabs(value), &exponent);  // in [0.5, 1)
  if (exponent < -13) return 0;
  const int64_t bits = static_cast<int64_t>(exponent + 13) * 1024 + lrint(fraction * 2048);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | bits);
}

// 16- or 32-bit floats in a buffer of their exact length, so that a read beyond it is seen.
struct Floats {
  int32_t dtype = QD_FP32;
  std::vector<uint16_t> narrow;
  std::vector<float> wide;

  Floats(int32_t dtype_, size_t count) : dtype(dtype_) {
    if (dtype == QD_FP32) wide.resize(count); else narrow.resize(count);
  }
  void* data() { return dtype == QD_FP32 ? static_cast<void*>(wide.data()) : narrow.data(); }
  float get(size_t i) const { return dtype == QD_FP32 ? wide[i] : dtype == QD_BF16 ? of_bf16(narrow[i]) : of_fp16(narrow[i]); }
  void set(size_t i, float value) {
    if (dtype == QD_FP32) wide[i] = value;
    else narrow[i] = dtype == QD_BF16 ? to_bf16(value) : to_fp16(value);
  }
};

struct Layer {
  qd_weight weight{};
  std::vector<uint8_t> codes;   // [n, k], as qd_pack takes them
  std::vector<double> values;   // [n, k], the weight
  std::vector<uint32_t> packed;
  std::vector<uint8_t> scale, zero;
  std::vector<int32_t> columns;
  std::vector<float> bias;
};

inline double fp4(int code) {
  const double sizes[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}
inline double e4m3(int code) {
  const int exponent = (code >> 3) & 15;
  const double size = exponent ? ldexp(8 + (code & 7), exponent - 10) : ldexp(code & 7, -9);
  return code & 0x80 ? -size : size;
}

struct Plan {
  int64_t n, k, group;
  int32_t format, slot_bits, scale_dtype, zero_bits;
  bool ordered, bias;
};

inline Plan random_plan(Random& random, bool int8_inputs) {
  Plan plan{};
  plan.n = pick(random, 1, 3) == 1 ? pick(random, 1, 40) : pick(random, 41, 300);
  plan.k = pick(random, 1, 3) == 1 ? pick(random, 1, 40) : pick(random, 41, 700);
  const int64_t groups[] = {plan.k, 1, 7, 16, 32, 128, pick(random, 1, plan.k)};
  plan.group = std::min(groups[pick(random, 0, 6)], plan.k);
  plan.format = int8_inputs ? QD_INT : static_cast<int32_t>(pick(random, 0, 2));
  const int32_t slots[] = {2, 3, 4, 5, 8};
  plan.slot_bits = plan.format == QD_FP4 ? 4 : plan.format == QD_FP8 ? 8 : slots[pick(random, 0, 4)];
  plan.scale_dtype = static_cast<int32_t>(pick(random, 0, plan.format == QD_INT ? 2 : 4));
  if (plan.format == QD_INT && pick(random, 0, 1)) plan.zero_bits = plan.slot_bits <= 4 && pick(random, 0, 1) ? 4 : 8;
  plan.ordered = pick(random, 0, 3) == 0;
  plan.bias = pick(random, 0, 1) == 1;
  return plan;
}

inline Layer make_layer(Random& random, const Plan& plan) {
  Layer layer;
  qd_weight& w = layer.weight;
  const int64_t n = plan.n, k = plan.k, groups = (k + plan.group - 1) / plan.group, padded = (n + 15) / 16 * 16;
  w.n = n, w.k = k, w.group = plan.group, w.groups = groups, w.format = plan.format, w.slot_bits = plan.slot_bits;
  w.scale_dtype = plan.scale_dtype, w.zero_bits = plan.zero_bits;
  const int32_t half = 1 << (plan.slot_bits - 1);
  std::vector<int32_t> group_of(static_cast<size_t>(k));
  std::vector<int32_t> order(static_cast<size_t>(k));
  for (int64_t c = 0; c < k; ++c) order[c] = static_cast<int32_t>(c);
  if (plan.ordered) std::shuffle(order.begin(), order.end(), random);
  for (int64_t i = 0; i < k; ++i) group_of[order[i]] = static_cast<int32_t>(i / plan.group);
  if (plan.ordered) {
    layer.columns.assign(static_cast<size_t>(groups * plan.group), -1);
    std::copy(order.begin(), order.end(), layer.columns.begin());
    w.columns = layer.columns.data();
  }
  const size_t scale_size = plan.scale_dtype == QD_FP32 ? 4 : plan.scale_dtype >= QD_E8M0 ? 1 : 2;
  layer.scale.assign(static_cast<size_t>(padded * groups) * scale_size, 0);
  layer.zero.assign(plan.zero_bits == 8 ? padded * groups : plan.zero_bits == 4 ? padded * groups / 2 : 0, 0);
  layer.codes.resize(static_cast<size_t>(n * k));
  layer.values.resize(static_cast<size_t>(n * k));
  const double largest = plan.format == QD_INT ? half : plan.format == QD_FP4 ? 6 : 448;
  // outputs of about the size of inputs, whatever the scale's dtype can hold
  w.unit = static_cast<float>(4 / (largest * sqrt(static_cast<double>(k))));
  for (int64_t o = 0; o < n; ++o) {
    const int64_t first = o / 64 * 64, width = std::min<int64_t>(64, padded - first), lane = o - first;
    std::vector<double> scales(groups), zeros(groups, 0);
    for (int64_t g = 0; g < groups; ++g) {
      const size_t at = static_cast<size_t>(first * groups + g * width + lane);
      const double size = uniform(random, .1, 1);
      if (plan.scale_dtype == QD_FP32) {
        const float value = static_cast<float>(size);
        memcpy(&layer.scale[at * 4], &value, 4);
        scales[g] = value;
      } else if (plan.scale_dtype == QD_E8M0) {
        const int exponent = static_cast<int>(floor(log2(size)));
        layer.scale[at] = static_cast<uint8_t>(exponent + 127);
        scales[g] = ldexp(1, exponent);
      } else if (plan.scale_dtype == QD_E4M3) {
        layer.scale[at] = static_cast<uint8_t>(pick(random, 0x20, 0x38));
        scales[g] = e4m3(layer.scale[at]);
      } else {
        const uint16_t bits = plan.scale_dtype == QD_BF16 ? to_bf16(static_cast<float>(size)) : to_fp16(static_cast<float>(size));
        memcpy(&layer.scale[at * 2], &bits, 2);
        scales[g] = plan.scale_dtype == QD_BF16 ? of_bf16(bits) : of_fp16(bits);
      }
      if (plan.zero_bits) {
        const int64_t zero = pick(random, 0, std::min(2 * half, 256) - 1);  // 2^(slot_bits-1) included
        zeros[g] = static_cast<double>(zero - half);
        const size_t start = static_cast<size_t>(first * groups) * plan.zero_bits / 8;
        if (plan.zero_bits == 8) layer.zero[start + g * width + lane] = static_cast<uint8_t>(zero);
        else if (lane < width / 2) layer.zero[start + g * width / 2 + lane] |= static_cast<uint8_t>(zero);
        else layer.zero[start + g * width / 2 + lane - width / 2] |= static_cast<uint8_t>(zero << 4);
      }
    }
    for (int64_t c = 0; c < k; ++c) {
      const int32_t g = group_of[c];
      int64_t code = pick(random, 0, 2 * half - 1);
      if (plan.format == QD_FP8 && (code & 0x7f) == 0x7f) code = 0;
      const double value = plan.format == QD_FP4 ? fp4(static_cast<int>(code)) : plan.format == QD_FP8 ? e4m3(static_cast<int>(code)) : static_cast<double>(code - half);
      layer.codes[o * k + c] = static_cast<uint8_t>(plan.format == QD_INT ? code - half : code);
      layer.values[o * k + c] = (value - zeros[g]) * scales[g] * w.unit;
    }
  }
  const int64_t words = plan.slot_bits == 2 ? 16 : plan.slot_bits == 3 ? 10 : plan.slot_bits == 4 ? 8 : plan.slot_bits == 5 ? 6 : 4;
  layer.packed.assign(static_cast<size_t>(padded * groups * ((plan.group + words - 1) / words)), 0);
  if (plan.bias) {
    layer.bias.resize(static_cast<size_t>(n));
    for (float& value : layer.bias) value = static_cast<float>(uniform(random, -1, 1));
    w.bias = layer.bias.data();
  }
  w.scale = layer.scale.data();
  w.zero = plan.zero_bits ? layer.zero.data() : nullptr;
  w.packed = layer.packed.data();
  return layer;
}

// Relative to the norm of `exact`.
inline double difference(const std::vector<double>& exact, const Floats& y, int64_t n, int64_t stride) {
  double off = 0, all = 1e-30;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double gap = y.get(i / n * stride + i % n) - exact[i];
    off += gap * gap;
    all += exact[i] * exact[i];
  }
  return sqrt(off / all);
}

inline double tolerance(int32_t dtype) { return dtype == QD_FP32 ? 1e-5 : dtype == QD_FP16 ? 1e-3 : 4e-3; }

#define REQUIRE(condition, ...)                                    \
  do {                                                             \
    if (!(condition)) {                                            \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                \
      fprintf(stderr, "\n");                                       \
      exit(1);                                                     \
    }                                                              \
  } while (0)
