// Of moe.cpp: one call's arguments, and its tokens sorted by the experts that they chose.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels.h"

namespace qd {

// One call's arguments.
struct Layer {
  const qd_weight *gate, *up, *down;
  int64_t experts;
  int32_t activation;
  Rows x;
  int64_t tokens;
  const int64_t* index;
  const float* weights;
  int64_t top_k;
  char* y;
  int64_t y_stride;
  int32_t dtype, hidden, threads;  // of x and y; of the hidden values
  int64_t features, inner;  // values of a row of x and y; of the hidden values
};

// Pairs of a block of tokens, by expert and then by token.
struct Sorted {
  std::vector<int64_t> token;  // counted from 0, of all tokens
  std::vector<float> weight;
  std::vector<int64_t> start;  // of each expert's pairs, and the end

  Sorted(const Layer& layer, int64_t begin, int64_t end) : start(static_cast<size_t>(layer.experts) + 1) {
    const int64_t first = begin * layer.top_k, last = end * layer.top_k;
    const auto chosen = [&](int64_t i) { return layer.index[i] >= 0 && layer.index[i] < layer.experts; };
    for (int64_t i = first; i < last; ++i)
      if (chosen(i)) ++start[static_cast<size_t>(layer.index[i]) + 1];
    for (size_t e = 1; e < start.size(); ++e) start[e] += start[e - 1];
    token.resize(static_cast<size_t>(start.back()));
    weight.resize(token.size());
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t i = first; i < last; ++i) {
      if (!chosen(i)) continue;
      const auto place = static_cast<size_t>(next[static_cast<size_t>(layer.index[i])]++);
      token[place] = i / layer.top_k;
      weight[place] = layer.weights[i];
    }
  }
};

}  // namespace qd
