// Dense bf16 weights [n, k] as torch stores them, row after row: no packing, no copy.
#pragma once
#include "kernels.h"

namespace qd {
namespace dense {

struct Weight {
  const uint16_t* data;  // bf16 [n, k]
  int64_t n, k, stride;  // of rows, in elements
};

// One instruction set's kernel.
struct Isa {
  int64_t panel;  // most rows of x at once
  // Bytes of `panel` rows of x as `tile` reads them.
  size_t (*prepared)(int64_t k, int64_t m);
  void (*prepare)(int64_t k, const uint16_t* x, int64_t m, int64_t stride, void* data);
  // out[i * kTile + o] for rows i < m and the outputs [first, first + count), count <= kTile.
  void (*tile)(const Weight& weight, const void* data, int64_t m, int64_t first, int64_t count, float* out);
};

#if defined(__x86_64__) || defined(__i386__)
const Isa& avx2();
const Isa& avx512();
#endif

}  // namespace dense
}  // namespace qd
