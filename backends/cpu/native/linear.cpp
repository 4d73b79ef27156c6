// The weight-only linear: rows of x in panels, tiles of outputs in parallel, the result rounded once.
#include <stdlib.h>

#include <algorithm>
#include <new>

#include "kernels.h"
#include "threads.h"

namespace qd {
namespace {

constexpr int64_t kPanelBytes = int64_t{24} << 20;

// Memory of a thread. Growing doubles, so that a length that creeps up does not allocate in each call; what is beyond
// kKept is given back by the next call that needs little.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { release(); }

  void* get(size_t bytes) {
    if (bytes > size_ || (size_ > kKept && bytes <= kKept)) {
      release();
      const size_t wanted = bytes > kKept ? bytes : std::min(kKept, std::max(bytes * 2, size_t{1} << 14));
      data_ = static_cast<char*>(::operator new(wanted, std::align_val_t{64}));
      size_ = wanted;
    }
    return data_;
  }

 private:
  static constexpr size_t kKept = size_t{32} << 20;

  void release() {
    if (data_) ::operator delete(data_, std::align_val_t{64});
    data_ = nullptr;
    size_ = 0;
  }

  char* data_ = nullptr;
  size_t size_ = 0;
};

// Where a panel's result goes.
struct Output {
  void* y;
  int64_t stride;
  int32_t dtype, threads;

  char* row(int64_t i) const { return static_cast<char*>(y) + i * stride * (dtype == QD_FP32 ? 4 : 2); }
};

void run_panel(const Isa& isa, const qd_weight& weight, const Shape& shape, const Rows& x, int64_t m,
               const Output& to) {
  Work work = isa.plan(shape, m, x.dtype);
  work.data = static_cast<char*>(thread_memory(kUseWork, work.bytes));
  const int64_t steps = ceil_div(m, work.step);
  parallel_for(
      steps, to.threads,
      [&](int64_t begin, int64_t end, int32_t) {
        isa.prepare(shape, x, begin * work.step, std::min(end * work.step, m), work);
      },
      m * shape.k);
  // Rows are shared out only where there are too few tiles for the threads: each share decodes the tile again.
  const int64_t shares = std::clamp<int64_t>(ceil_div(4 * to.threads, shape.tiles), 1, to.threads > 1 ? steps : 1);
  const int64_t share = ceil_div(steps, shares) * work.step;
  parallel_for(
      shape.tiles * shares, to.threads,
      [&](int64_t begin, int64_t end, int32_t) {
        float* const out = static_cast<float*>(thread_memory(kUseOut, static_cast<size_t>(share * kTile) * 4));
        void* const scratch = work.scratch ? thread_memory(kUseScratch, work.scratch) : nullptr;
        for (int64_t task = begin; task < end; ++task) {
          const int64_t t = task / shares, first = task % shares * share, last = std::min(first + share, m);
          if (first >= last) continue;
          const int64_t following = (task + 1) / shares;
          const Next next{following < shape.tiles ? &weight : nullptr, &shape, following};
          isa.tile(weight, shape, work, first, last, t, out, kTile, scratch, next);
          const float* const bias = weight.bias ? weight.bias + t * kTile : nullptr;
          for (int64_t i = first; i < last; ++i)
            isa.store(out + (i - first) * kTile, bias, shape.outputs(t),
                      to.row(i) + t * kTile * (to.dtype == QD_FP32 ? 4 : 2), to.dtype);
        }
      },
      shape.n * shape.k * (m + 1) / 2);
}

}  // namespace

void* thread_memory(Use use, size_t bytes) {
  static thread_local Memory memory[kUses];
  return memory[use].get(bytes);
}

const Isa& isa_in_use() {
#if defined(__x86_64__) || defined(__i386__)
  const int32_t isa = qd_isa();
  if (isa == QD_AVX512_VNNI) return avx512_vnni();
  if (isa == QD_AVX512) return avx512();
  if (isa == QD_AVX2) return avx2();
#endif
  return portable();
}

int32_t check(const qd_weight& w) {
  const int32_t bits = w.slot_bits;
  if (w.n < 1 || w.k < 1 || w.group < 1 || w.groups < 1) return -2;
  if (w.n > INT32_MAX || w.k > INT32_MAX || w.group > INT32_MAX || w.groups > INT32_MAX) return -2;
  if (w.groups * w.group < w.k || (w.columns == nullptr && (w.groups - 1) * w.group >= w.k)) return -2;
  if (w.format < QD_INT || w.format > QD_FP8) return -3;
  if (w.format == QD_INT ? bits < 2 || bits > 8 || bits == 6 || bits == 7 : bits != (w.format == QD_FP4 ? 4 : 8))
    return -3;
  if (w.scale_dtype < QD_BF16 || w.scale_dtype > QD_E4M3) return -3;
  if (w.zero_bits != 0 && (w.format != QD_INT || (w.zero_bits != 8 && (w.zero_bits != 4 || bits > 4)))) return -3;
  return 0;
}

}  // namespace qd

extern "C" int32_t qd_linear(const qd_weight* weight, const void* x, int64_t m, int64_t x_stride, void* y,
                             int64_t y_stride, int32_t dtype, int32_t threads) {
  using namespace qd;
  if (!weight || !x || !y || !weight->packed || !weight->scale || (weight->zero_bits && !weight->zero)) return -1;
  if (const int32_t error = check(*weight)) return error;
  const int32_t result = dtype & QD_WIDE ? QD_FP32 : dtype;
  dtype &= ~QD_WIDE;
  if (m < 0 || dtype < QD_BF16 || dtype > QD_FP32) return -4;
  try {
    const Isa& isa = isa_in_use();
    const Shape shape(*weight);
    // Panels of equal height, as a last one of few rows would be read for little; lower ones of long rows, so that a
    // thread need not keep much.
    const int64_t step = isa.plan(shape, isa.panel, dtype).step;
    const int64_t fits = std::max(kPanelBytes / (shape.padded_k() * 4) / step * step, step);
    const int64_t most = std::min(isa.panel, fits), panels = ceil_div(m, most);
    const int64_t height = panels > 1 ? std::min(most, ceil_div(ceil_div(m, panels), step) * step) : m;
    const int64_t size = dtype == QD_FP32 ? 4 : 2, result_size = result == QD_FP32 ? 4 : 2;
    for (int64_t i = 0; i < m; i += height) {
      const Rows rows{static_cast<const char*>(x) + i * x_stride * size, x_stride, dtype, nullptr};
      const Output to{static_cast<char*>(y) + i * y_stride * result_size, y_stride, result, std::max(threads, 1)};
      run_panel(isa, *weight, shape, rows, std::min(height, m - i), to);
    }
    return 0;
  } catch (...) {
    return -9;
  }
}
