// qd_dense: layers left in bf16, for few rows and for processors without bf16 instructions.
#include "dense.h"
#include "threads.h"

namespace qd {
namespace dense {
namespace {

const Isa* in_use() {
#if defined(__x86_64__) || defined(__i386__)
  switch (qd_isa()) {
    case QD_AVX512_VNNI:
    case QD_AVX512: return &avx512();
    case QD_AVX2: return &avx2();
  }
#endif
  return nullptr;
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace
}  // namespace dense
}  // namespace qd

extern "C" int32_t qd_dense(const void* weight, int64_t n, int64_t k, int64_t stride, const void* bias,
                                   const void* x, int64_t m, int64_t x_stride, void* y, int64_t y_stride,
                                   int32_t threads) {
  using namespace qd;
  const dense::Isa* isa = dense::in_use();
  if (isa == nullptr || n < 1 || k < 1 || m < 0) return -1;
  const dense::Weight rows{static_cast<const uint16_t*>(weight), n, k, stride};
  const auto* add = static_cast<const uint16_t*>(bias);
  const int64_t tiles = ceil_div(n, kTile);
  try {
  for (int64_t first = 0; first < m; first += isa->panel) {
    const int64_t count = m - first < isa->panel ? m - first : isa->panel;
    void* data = thread_memory(kUseWork, isa->prepared(k, count));
    isa->prepare(k, static_cast<const uint16_t*>(x) + first * x_stride, count, x_stride, data);
    const size_t out_bytes = dense::aligned(static_cast<size_t>(count * kTile) * sizeof(float));
    char* memory = static_cast<char*>(thread_memory(kUseOut, out_bytes * static_cast<size_t>(threads < 1 ? 1 : threads)));
    parallel_for(
        tiles, threads,
        [&](int64_t begin, int64_t end, int32_t thread) {
          auto* out = reinterpret_cast<float*>(memory + out_bytes * static_cast<size_t>(thread));
          for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t at = tile * kTile, outputs = n - at < kTile ? n - at : kTile;
            isa->tile(rows, data, count, at, outputs, out);
            for (int64_t i = 0; i < count; ++i) {
              uint16_t* to = static_cast<uint16_t*>(y) + (first + i) * y_stride + at;
              for (int64_t o = 0; o < outputs; ++o)
                to[o] = bf16_of_float(out[i * kTile + o] + (add ? float_of_bf16(add[at + o]) : 0.f));
            }
          }
        },
        2 * n * k);
  }
  } catch (...) {  // no memory
    return -9;
  }
  return 0;
}
