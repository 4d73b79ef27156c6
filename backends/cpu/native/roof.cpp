// How fast one thread can read memory: what the benchmarks compare with.
#include "abi.h"

namespace {

// The words as S streams that are read side by side. Prefetchers stop at the end of a page; with several streams the
// others go on meanwhile.
template <int S>
uint64_t read(const uint64_t* words, int64_t count) {
  constexpr int64_t kLine = 8, kAhead = 64;
  const int64_t part = count / S / kLine * kLine;
  uint64_t sums[S][kLine] = {};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int stream = 0; stream < S; ++stream) {
      const uint64_t* line = words + stream * part + i;
#if defined(__GNUC__)
      if (S > 1) __builtin_prefetch(line + kAhead);
#endif
      for (int64_t lane = 0; lane < kLine; ++lane) sums[stream][lane] ^= line[lane];
    }
  }
  uint64_t all = 0;
  for (const auto& stream : sums)
    for (uint64_t sum : stream) all ^= sum;
  for (int64_t i = S * part; i < count; ++i) all ^= words[i];
  return all;
}

}  // namespace

extern "C" uint64_t qd_read(const uint64_t* words, int64_t count, int32_t streams) {
  return streams == 4 ? read<4>(words, count) : read<1>(words, count);
}
