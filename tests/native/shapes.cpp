// Random layers of every format, on every instruction set of this processor: packing gives the codes back, and products
// are right. Built with the address and undefined-behaviour sanitizers by `make sanitize`. Arguments: rounds, seed.
#include "cases.h"

namespace {

struct Rows {
  int64_t m, stride;
  Floats x;
};

Rows random_rows(Random& random, int64_t k) {
  const int64_t many[] = {1, 2, 3, 5, 16, 17, 40};
  const int64_t m = many[pick(random, 0, 6)], stride = k + pick(random, 0, 1) * pick(random, 1, 9);
  Rows rows{m, stride, Floats(static_cast<int32_t>(pick(random, 0, 2)), static_cast<size_t>((m - 1) * stride + k))};
  for (int64_t i = 0; i < m; ++i)
    for (int64_t c = 0; c < k; ++c) rows.x.set(i * stride + c, static_cast<float>(uniform(random, -1, 1)));
  return rows;
}

void check_packing(Layer& layer, int32_t threads) {
  const qd_weight& w = layer.weight;
  REQUIRE(qd_pack(&w, layer.codes.data(), layer.packed.data(), threads) == 0, "pack");
  std::vector<uint8_t> back(layer.codes.size());
  REQUIRE(qd_unpack(&w, back.data(), threads) == 0, "unpack");
  // integers come back with 2^(slot_bits-1) added
  const int32_t half = w.format == QD_INT ? 1 << (w.slot_bits - 1) : 0;
  std::vector<uint8_t> stored = layer.codes;
  for (uint8_t& code : stored) code = static_cast<uint8_t>(code + half);
  const bool plain = back == layer.codes;
  REQUIRE(plain || back == stored, "codes differ: n %ld k %ld group %ld slot %d", w.n, w.k, w.group, w.slot_bits);
  const int64_t index[] = {0, w.n - 1, w.n / 2};
  std::vector<uint8_t> rows(static_cast<size_t>(3 * w.k));
  REQUIRE(qd_unpack_rows(&w, index, 3, rows.data()) == 0, "unpack_rows");
  for (int r = 0; r < 3; ++r)
    REQUIRE(memcmp(&rows[r * w.k], &(plain ? layer.codes : stored)[index[r] * w.k], w.k) == 0, "rows differ");
}

void describe(const qd_weight& w, int64_t m, int32_t dtype, double error) {
  fprintf(stderr, "isa %d: n %ld k %ld group %ld format %d slot %d scale %d zero %d m %ld dtype %d: error %.3g\n", qd_isa(),
          w.n, w.k, w.group, w.format, w.slot_bits, w.scale_dtype, w.zero_bits, m, dtype, error);
}

std::vector<double> product(const Layer& layer, const std::vector<double>& x, int64_t m) {
  const qd_weight& w = layer.weight;
  std::vector<double> y(static_cast<size_t>(m * w.n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t o = 0; o < w.n; ++o) {
      double sum = layer.bias.empty() ? 0 : layer.bias[o];
      for (int64_t c = 0; c < w.k; ++c) sum += x[i * w.k + c] * layer.values[o * w.k + c];
      y[i * w.n + o] = sum;
    }
  return y;
}

std::vector<double> wide(const Rows& rows, int64_t k) {
  std::vector<double> x(static_cast<size_t>(rows.m * k));
  for (int64_t i = 0; i < rows.m; ++i)
    for (int64_t c = 0; c < k; ++c) x[i * k + c] = rows.x.get(i * rows.stride + c);
  return x;
}

void check_linear(Random& random, Layer& layer, int32_t threads) {
  const qd_weight& w = layer.weight;
  Rows rows = random_rows(random, w.k);
  const std::vector<double> exact = product(layer, wide(rows, w.k), rows.m);
  for (int32_t isa = QD_PORTABLE; isa <= qd_isa_best(); ++isa) {
    qd_set_isa(isa);
    Floats y(rows.x.dtype, static_cast<size_t>(rows.m * w.n));
    REQUIRE(qd_linear(&w, rows.x.data(), rows.m, rows.stride, y.data(), w.n, rows.x.dtype, threads) == 0, "linear");
    const double error = difference(exact, y, w.n, w.n);
    if (error >= tolerance(rows.x.dtype)) describe(w, rows.m, rows.x.dtype, error);
    REQUIRE(error < tolerance(rows.x.dtype), "linear");
  }
}

void check_int8(Random& random, Layer& layer, int32_t threads) {
  const qd_weight& w = layer.weight;
  Rows rows = random_rows(random, w.k);
  qd_inputs inputs{};
  inputs.bits = static_cast<int32_t>(pick(random, 2, 8));
  inputs.symmetric = 1;
  inputs.dynamic = static_cast<int32_t>(pick(random, 0, 1));
  inputs.per_tensor = inputs.dynamic ? 0 : 1;
  const float high = static_cast<float>((1 << (inputs.bits - 1)) - 1);
  inputs.scale = 0.9f / high;
  if (!inputs.dynamic && pick(random, 0, 1)) {
    inputs.symmetric = 0;
    inputs.zero_point = static_cast<float>(pick(random, -2, 1));
  }
  std::vector<double> x = wide(rows, w.k);
  for (int64_t i = 0; i < rows.m; ++i) {
    float most = 0;
    for (int64_t c = 0; c < w.k; ++c) most = std::max(most, static_cast<float>(fabs(x[i * w.k + c])));
    const float scale = inputs.dynamic ? most / high : inputs.scale;
    for (int64_t c = 0; c < w.k; ++c) {
      const float code = nearbyintf(static_cast<float>(x[i * w.k + c]) / scale + inputs.zero_point);
      x[i * w.k + c] = static_cast<double>(std::clamp(code, -1 - high, high) - inputs.zero_point) * scale;
    }
  }
  const std::vector<double> exact = product(layer, x, rows.m);
  for (int32_t isa = QD_PORTABLE; isa <= qd_isa_best(); ++isa) {
    qd_set_isa(isa);
    Floats y(rows.x.dtype, static_cast<size_t>(rows.m * w.n));
    const int32_t rc = qd_linear_int8(&w, &inputs, rows.x.data(), rows.m, rows.stride, y.data(), w.n, rows.x.dtype, threads);
    REQUIRE(rc == 0, "linear_int8: %d", rc);
    const double error = difference(exact, y, w.n, w.n);
    if (error >= tolerance(rows.x.dtype)) describe(w, rows.m, rows.x.dtype, error);
    REQUIRE(error < tolerance(rows.x.dtype), "linear_int8");
  }
}

void check_dense(Random& random, int32_t threads) {
  const int64_t n = pick(random, 1, 90), k = pick(random, 1, 200), stride = k + pick(random, 0, 5);
  Rows rows = random_rows(random, k);
  if (rows.x.dtype != QD_BF16) return;
  Floats weight(QD_BF16, static_cast<size_t>((n - 1) * stride + k)), bias(QD_BF16, static_cast<size_t>(n));
  std::vector<double> exact(static_cast<size_t>(rows.m * n));
  for (int64_t o = 0; o < n; ++o) {
    bias.set(o, static_cast<float>(uniform(random, -1, 1)));
    for (int64_t c = 0; c < k; ++c) weight.set(o * stride + c, static_cast<float>(uniform(random, -1, 1)));
  }
  for (int64_t i = 0; i < rows.m; ++i)
    for (int64_t o = 0; o < n; ++o) {
      exact[i * n + o] = bias.get(o);
      for (int64_t c = 0; c < k; ++c) exact[i * n + o] += rows.x.get(i * rows.stride + c) * weight.get(o * stride + c);
    }
  for (int32_t isa = QD_PORTABLE; isa <= qd_isa_best(); ++isa) {
    qd_set_isa(isa);
    Floats y(QD_BF16, static_cast<size_t>(rows.m * n));
    const int32_t rc = qd_dense(weight.data(), n, k, stride, bias.data(), rows.x.data(), rows.m, rows.stride, y.data(), n, threads);
    if (isa == QD_PORTABLE && rc < 0) continue;  // it has no such kernel
    REQUIRE(rc == 0, "dense: %d", rc);
    const double error = difference(exact, y, n, n);
    REQUIRE(error < tolerance(QD_BF16), "dense: n %ld k %ld m %ld: %.3g", n, k, rows.m, error);
  }
}

double silu(double x) { return x / (1 + exp(-x)); }

void check_moe(Random& random, int32_t threads) {
  const int64_t experts = pick(random, 1, 5), top = pick(random, 1, 3);
  Plan in = random_plan(random, false);
  in.n = std::min<int64_t>(in.n, 90), in.k = std::min<int64_t>(in.k, 130), in.group = std::min(in.group, in.k);
  in.ordered = in.bias = false;
  Plan out = in;
  out.n = in.k, out.k = in.n, out.group = std::min(in.group, out.k);
  std::vector<Layer> gates, ups, downs;
  std::vector<qd_weight> gate, up, down;
  for (int64_t e = 0; e < experts; ++e) {
    gates.push_back(make_layer(random, in)), ups.push_back(make_layer(random, in)), downs.push_back(make_layer(random, out));
    for (Layer* layer : {&gates.back(), &ups.back(), &downs.back()})
      REQUIRE(qd_pack(&layer->weight, layer->codes.data(), layer->packed.data(), threads) == 0, "pack");
  }
  for (int64_t e = 0; e < experts; ++e) gate.push_back(gates[e].weight), up.push_back(ups[e].weight), down.push_back(downs[e].weight);
  Rows rows = random_rows(random, in.k);
  std::vector<int64_t> index(static_cast<size_t>(rows.m * top));
  std::vector<float> weights(index.size());
  for (size_t i = 0; i < index.size(); ++i) index[i] = pick(random, -1, experts), weights[i] = static_cast<float>(uniform(random, 0, 1));
  const std::vector<double> x = wide(rows, in.k);
  std::vector<double> exact(static_cast<size_t>(rows.m * in.k));
  std::vector<std::vector<double>> result;
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<double> a = product(gates[e], x, rows.m);
    const std::vector<double> b = product(ups[e], x, rows.m);
    for (size_t i = 0; i < a.size(); ++i) a[i] = silu(a[i]) * b[i];
    result.push_back(product(downs[e], a, rows.m));
  }
  for (int64_t t = 0; t < rows.m; ++t)
    for (int64_t j = 0; j < top; ++j) {
      const int64_t e = index[t * top + j];
      if (e < 0 || e >= experts) continue;
      for (int64_t c = 0; c < in.k; ++c) exact[t * in.k + c] += weights[t * top + j] * result[e][t * in.k + c];
    }
  for (int32_t isa = QD_PORTABLE; isa <= qd_isa_best(); ++isa) {
    qd_set_isa(isa);
    Floats y(rows.x.dtype, static_cast<size_t>(rows.m * in.k));
    const int32_t rc = qd_moe(gate.data(), up.data(), down.data(), experts, QD_SILU, rows.x.data(), rows.m, rows.stride,
                              index.data(), weights.data(), top, y.data(), in.k, rows.x.dtype, threads);
    REQUIRE(rc == 0, "moe: %d", rc);
    // what is between the two products is rounded too, and may be so small that fp16 has few bits for it
    const double error = difference(exact, y, in.k, in.k), allowed = (rows.x.dtype == QD_FP16 ? 20 : 3) * tolerance(rows.x.dtype);
    if (error >= allowed) describe(gate[0], rows.m, rows.x.dtype, error);
    REQUIRE(error < allowed, "moe");
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? atoi(arguments[1]) : 100;
  Random random(count > 2 ? static_cast<unsigned>(atoi(arguments[2])) : 1);
  for (int round = 0; round < rounds; ++round) {
    const int32_t threads = static_cast<int32_t>(pick(random, 1, 3));
    const bool int8_inputs = pick(random, 0, 2) == 0;
    Layer layer = make_layer(random, random_plan(random, int8_inputs));
    check_packing(layer, threads);
    if (int8_inputs) check_int8(random, layer, threads);
    else check_linear(random, layer, threads);
    if (round % 4 == 0) check_moe(random, threads);
    check_dense(random, threads);
  }
  printf("%d random layers on %d instruction sets\n", rounds, qd_isa_best() + 1);
  return 0;
}
