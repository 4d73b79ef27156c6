// Routed experts in one call: tokens sorted by expert, then for the experts that were chosen, and no others,
//   gate and up of all of them  ->  activation  ->  down of all of them  ->  weighted sum.
//
// A panel is one expert with at most Isa::panel of its rows (pairs of a token and an expert that it chose). Panels are
// worked off in batches that bound the memory; within a batch each step is one parallel region over all its panels'
// tiles, so that one token with eight experts keeps as many threads busy as a long prompt does.
//
// Rounding: a model rounds hidden values, and every expert's part. Here hidden values stay fp32 where that costs nothing
// (Isa::wide_tokens; else they are rounded like a model's own tensors, gates.h), and what the down projections give until
// the sum of a token's experts is complete; that is rounded once. A token's experts are added in the order of their
// numbers. Nothing depends on the number of threads.
#include <algorithm>
#include <memory>
#include <vector>

#include "gates.h"
#include "kernels.h"
#include "moe_layer.h"
#include "threads.h"

namespace qd {
namespace {

// Bytes of a batch's prepared rows, hidden values and results: what a processor's last cache has for a few cores.
constexpr size_t kBatchBytes = size_t{16} << 20;
// Of the sums of a block of tokens.
constexpr int64_t kSumBytes = int64_t{32} << 20;
// Rows that a thread prepares, and columns that it sums, at a time.
constexpr int64_t kPrepareRows = 16, kSumColumns = 512;

constexpr int32_t kBadArgument = -1, kFailed = -9;

constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t value_bytes(int32_t dtype) { return dtype == QD_FP32 ? 4 : 2; }

// Rows of x, prepared for one or several weights of a shape.
struct Prepared {
  Shape shape;
  Rows rows;
  Work work;
};

struct Panel {
  int64_t expert, first, rows;  // of Sorted's pairs
  size_t gate, up;              // which of the batch's prepared rows
  Shape down;
};

bool same_rows(const Shape& a, const Shape& b) {
  return a.n == b.n && a.k == b.k && a.group == b.group && a.groups == b.groups && a.format == b.format &&
         a.slot_bits == b.slot_bits && a.columns == b.columns;
}

// Pieces of this thread's memory.
class Arena {
 public:
  explicit Arena(size_t bytes) : next_(static_cast<char*>(thread_memory(kUseMoe, bytes))) {}

  char* take(size_t bytes) {
    char* const piece = next_;
    next_ += aligned(bytes);
    return piece;
  }

 private:
  char* next_;
};

// Panels that are computed together.
class Batch {
 public:
  Batch(const Layer& layer, const Isa& isa, const Sorted& sorted) : layer_(layer), isa_(isa), sorted_(sorted) {}

  // Whether it took the panel; the first is always taken.
  bool add(int64_t expert, int64_t first, int64_t rows) {
    Panel panel{expert, first, rows, 0, 0, Shape(layer_.down[expert])};
    const size_t before = prepared_.size();
    panel.gate = prepare(layer_.gate[expert], first, rows);
    panel.up = layer_.up ? prepare(layer_.up[expert], first, rows) : panel.gate;
    size_t bytes = aligned(isa_.plan(panel.down, rows, layer_.hidden).bytes);
    for (size_t i = before; i < prepared_.size(); ++i) bytes += aligned(prepared_[i].work.bytes);
    bytes += static_cast<size_t>(rows * (layer_.inner * value_bytes(layer_.hidden) + result_stride() * 4));
    if (!panels_.empty() && bytes_ + bytes > kBatchBytes) {
      prepared_.erase(prepared_.begin() + static_cast<std::ptrdiff_t>(before), prepared_.end());
      return false;
    }
    bytes_ += bytes;
    pairs_ += rows;
    panels_.push_back(panel);
    return true;
  }

  bool empty() const { return panels_.empty(); }

  void clear() {
    prepared_.clear();
    panels_.clear();
    bytes_ = 0;
    pairs_ = 0;
  }

  // Adds the panels' parts to `sums` [tokens from `begin` on][features].
  void run(int64_t begin, int64_t end, float* sums) {
    Arena arena(bytes_ + 128);
    for (Prepared& rows : prepared_) rows.work.data = arena.take(rows.work.bytes);
    char* const hidden = arena.take(static_cast<size_t>(pairs_ * layer_.inner * value_bytes(layer_.hidden)));
    prepare_all(prepared_);
    gate_and_up(hidden);
    std::vector<Prepared> inner;
    inner.reserve(panels_.size());
    for (const Panel& panel : panels_) {
      const Rows rows{hidden + (panel.first - panels_[0].first) * layer_.inner * value_bytes(layer_.hidden),
                      layer_.inner, layer_.hidden, nullptr};
      inner.push_back({panel.down, rows, isa_.plan(panel.down, panel.rows, layer_.hidden)});
      inner.back().work.data = arena.take(inner.back().work.bytes);
    }
    prepare_all(inner);
    auto* const results = reinterpret_cast<float*>(arena.take(static_cast<size_t>(pairs_ * result_stride() * 4)));
    down(inner, results);
    add_up(begin, end, results, sums);
  }

 private:
  int64_t result_stride() const { return ceil_div(layer_.features, kTile) * kTile; }

  // Experts of one shape that see the same token share its preparation.
  size_t prepare(const qd_weight& weight, int64_t first, int64_t rows) {
    const Shape shape(weight);
    const int64_t* const tokens = sorted_.token.data() + first;
    for (size_t i = prepared_.size(); i-- > 0 && prepared_.size() - i <= 2;) {
      const Prepared& other = prepared_[i];
      const bool same = other.work.m == rows && std::equal(tokens, tokens + rows, other.rows.index);
      if (same && same_rows(shape, other.shape)) return i;
    }
    Rows gathered = layer_.x;
    gathered.index = tokens;
    prepared_.push_back({shape, gathered, isa_.plan(shape, rows, layer_.dtype)});
    return prepared_.size() - 1;
  }

  void prepare_all(const std::vector<Prepared>& all) const {
    struct Part {
      const Prepared* rows;
      int64_t begin, end;
    };
    std::vector<Part> parts;
    int64_t bytes = 0;
    for (const Prepared& rows : all) {
      const int64_t step = ceil_div(kPrepareRows, rows.work.step) * rows.work.step;
      for (int64_t i = 0; i < rows.work.m; i += step) parts.push_back({&rows, i, std::min(i + step, rows.work.m)});
      bytes += static_cast<int64_t>(rows.work.bytes);
    }
    parallel_for(
        static_cast<int64_t>(parts.size()), layer_.threads,
        [&](int64_t begin, int64_t end, int32_t) {
          for (int64_t i = begin; i < end; ++i) {
            const Part& part = parts[static_cast<size_t>(i)];
            isa_.prepare(part.rows->shape, part.rows->rows, part.begin, part.end, part.rows->work);
          }
        },
        bytes);
  }

  // Multiply-adds, or bytes of codes where there are few rows: what makes threads worth their while.
  int64_t effort() const {
    return static_cast<int64_t>(panels_.size() + static_cast<size_t>(pairs_)) * layer_.inner * layer_.features / 2;
  }

  // A tile of a panel, and the thread's next one (the first of no panel after its last).
  struct Place {
    const Panel* panel;
    size_t number;
    int64_t tile;
  };

  Place place(int64_t task, int64_t tiles, int64_t end) const {
    const auto number = static_cast<size_t>(task / tiles);
    return {task < end ? &panels_[number] : nullptr, number, task % tiles};
  }

  // fn(where, where then, memory for `outputs` results of the panel's rows, scratch) for all panels and tiles.
  template <class Fn>
  void for_tiles(int64_t tiles, int64_t outputs, size_t scratch, Fn&& fn) const {
    int64_t most = 0;
    for (const Panel& panel : panels_) most = std::max(most, panel.rows);
    parallel_for(
        static_cast<int64_t>(panels_.size()) * tiles, layer_.threads,
        [&](int64_t begin, int64_t end, int32_t) {
          auto* const out = static_cast<float*>(
              thread_memory(kUseOut, static_cast<size_t>(std::max<int64_t>(outputs * most * kTile, 1)) * 4));
          void* const memory = scratch ? thread_memory(kUseScratch, scratch) : nullptr;
          for (int64_t i = begin; i < end; ++i) fn(place(i, tiles, end), place(i + 1, tiles, end), out, memory);
        },
        effort());
  }

  Next next_gate(const Place& at) const {
    // the down projections are read after the last gate, and begin with the first panel
    if (at.panel == nullptr) return {layer_.down + panels_[0].expert, &panels_[0].down, 0};
    return {layer_.gate + at.panel->expert, &prepared_[at.panel->gate].shape, at.tile};
  }

  void gate_and_up(char* hidden) const {
    size_t scratch = 0;
    for (const Prepared& rows : prepared_) scratch = std::max(scratch, rows.work.scratch);
    const int64_t size = value_bytes(layer_.hidden);
    for_tiles(ceil_div(layer_.inner, kTile), 2, scratch,
              [&](const Place& at, const Place& then, float* gate, void* memory) {
                const Panel& panel = *at.panel;
                const Prepared& rows = prepared_[panel.gate];
                float* const up = layer_.up ? gate + panel.rows * kTile : nullptr;
                if (up) {
                  const qd_weight& weight = layer_.up[panel.expert];
                  one_tile(layer_.gate[panel.expert], rows, at.tile, gate, memory,
                           {&weight, &prepared_[panel.up].shape, at.tile});
                  one_tile(weight, prepared_[panel.up], at.tile, up, memory, next_gate(then));
                } else {
                  one_tile(layer_.gate[panel.expert], rows, at.tile, gate, memory, next_gate(then));
                }
                const int64_t count = rows.shape.outputs(at.tile);
                char* row = hidden + ((panel.first - panels_[0].first) * layer_.inner + at.tile * kTile) * size;
                for (int64_t i = 0; i < panel.rows; ++i, row += layer_.inner * size)
                  apply_gate(layer_.activation, gate + i * kTile, up ? up + i * kTile : nullptr, count, row,
                             layer_.hidden);
              });
  }

  // A tile for all rows of a panel, bias added.
  void one_tile(const qd_weight& weight, const Prepared& rows, int64_t tile, float* out, void* memory,
                const Next& next) const {
    isa_.tile(weight, rows.shape, rows.work, 0, rows.work.m, tile, out, kTile, memory, next);
    if (weight.bias == nullptr) return;
    const float* const bias = weight.bias + tile * kTile;
    const int64_t count = rows.shape.outputs(tile);
    for (int64_t i = 0; i < rows.work.m; ++i)
      for (int64_t o = 0; o < count; ++o) out[i * kTile + o] += bias[o];
  }

  void down(const std::vector<Prepared>& inner, float* results) const {
    size_t scratch = 0;
    for (const Prepared& rows : inner) scratch = std::max(scratch, rows.work.scratch);
    const int64_t stride = result_stride();
    for_tiles(ceil_div(layer_.features, kTile), 0, scratch,
              [&](const Place& at, const Place& then, float*, void* memory) {
                const Panel& panel = *at.panel;
                float* const out = results + (panel.first - panels_[0].first) * stride + at.tile * kTile;
                const Prepared& rows = inner[at.number];
                const Next next{then.panel ? layer_.down + then.panel->expert : nullptr,
                                then.panel ? &then.panel->down : nullptr, then.tile};
                isa_.tile(layer_.down[panel.expert], rows.shape, rows.work, 0, panel.rows, at.tile, out, stride, memory,
                          next);
              });
  }

  void add_up(int64_t begin, int64_t end, const float* results, float* sums) const {
    const std::vector<Part> parts = parts_by_token(begin, results);
    std::vector<size_t> start(static_cast<size_t>(end - begin) + 1);
    for (const Part& part : parts) ++start[static_cast<size_t>(part.token) + 1];
    for (size_t t = 1; t < start.size(); ++t) start[t] += start[t - 1];
    const int64_t blocks = ceil_div(layer_.features, kSumColumns);
    parallel_for(
        (end - begin) * blocks, layer_.threads,
        [&](int64_t from, int64_t to, int32_t) {
          for (int64_t task = from; task < to; ++task) {
            const auto t = static_cast<size_t>(task / blocks);
            const int64_t column = task % blocks * kSumColumns;
            const int64_t count = std::min(kSumColumns, layer_.features - column);
            float* const sum = sums + task / blocks * layer_.features + column;
            for (size_t i = start[t]; i < start[t + 1]; ++i) add_part(parts[i], column, count, sum);
          }
        },
        pairs_ * layer_.features);
  }

  // What a pair adds to its token (counted from the block's first).
  struct Part {
    int64_t token;
    const float *result, *bias;
    float weight;
  };

  static void add_part(const Part& part, int64_t column, int64_t count, float* sum) {
    const float* const result = part.result + column;
    if (part.bias) {
      const float* const bias = part.bias + column;
      for (int64_t c = 0; c < count; ++c) sum[c] += part.weight * (result[c] + bias[c]);
    } else {
      for (int64_t c = 0; c < count; ++c) sum[c] += part.weight * result[c];
    }
  }

  // Each token's by expert: the pairs are in that order, and it is kept.
  std::vector<Part> parts_by_token(int64_t begin, const float* results) const {
    std::vector<Part> parts;
    parts.reserve(static_cast<size_t>(pairs_));
    for (const Panel& panel : panels_) {
      for (int64_t i = panel.first; i < panel.first + panel.rows; ++i) {
        const auto pair = static_cast<size_t>(i);
        parts.push_back({sorted_.token[pair] - begin, results + (i - panels_[0].first) * result_stride(),
                         layer_.down[panel.expert].bias, sorted_.weight[pair]});
      }
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.token < b.token; });
    return parts;
  }

  const Layer& layer_;
  const Isa& isa_;
  const Sorted& sorted_;
  std::vector<Prepared> prepared_;
  std::vector<Panel> panels_;
  size_t bytes_ = 0;
  int64_t pairs_ = 0;
};

// Of equal height, as in linear.cpp: a last panel of few rows would read the weight for little.
int64_t panel_rows(const Isa& isa, int64_t rows) {
  const int64_t panels = ceil_div(rows, isa.panel);
  return panels <= 1 ? rows : std::min(isa.panel, ceil_div(ceil_div(rows, panels), 24) * 24);
}

// A block of tokens.
void run_block(const Layer& layer, const Isa& isa, int64_t begin, int64_t end, float* sums) {
  std::fill(sums, sums + (end - begin) * layer.features, 0.0f);
  const Sorted sorted(layer, begin, end);
  Batch batch(layer, isa, sorted);
  for (int64_t expert = 0; expert < layer.experts; ++expert) {
    const int64_t last = sorted.start[static_cast<size_t>(expert) + 1];
    const int64_t height = panel_rows(isa, last - sorted.start[static_cast<size_t>(expert)]);
    for (int64_t first = sorted.start[static_cast<size_t>(expert)]; first < last; first += height) {
      const int64_t rows = std::min(height, last - first);
      if (batch.add(expert, first, rows)) continue;
      batch.run(begin, end, sums);
      batch.clear();
      batch.add(expert, first, rows);
    }
  }
  if (!batch.empty()) batch.run(begin, end, sums);
  for (int64_t t = begin; t < end; ++t)
    isa.store(sums + (t - begin) * layer.features, nullptr, layer.features,
              layer.y + t * layer.y_stride * value_bytes(layer.dtype), layer.dtype);
}

bool readable(const qd_weight& weight) { return weight.packed && weight.scale && (weight.zero || !weight.zero_bits); }

// 0, or an error, of all weights, chosen or not.
int32_t check_layer(const Layer& layer) {
  if (!layer.x.x || !layer.y || !layer.index || !layer.weights || !layer.down) return kBadArgument;
  if (layer.tokens < 0 || layer.top_k < 0) return kBadArgument;
  if (layer.activation < QD_SILU || layer.activation > QD_GELU_TANH) return kBadArgument;
  if (layer.dtype < QD_BF16 || layer.dtype > QD_FP32) return kBadArgument;
  for (int64_t e = 0; e < layer.experts; ++e) {
    for (const qd_weight* const weight : {layer.gate + e, layer.up ? layer.up + e : layer.gate + e}) {
      if (const int32_t error = check(*weight)) return error;
      if (!readable(*weight)) return kBadArgument;
      if (weight->n != layer.inner || weight->k != layer.features) return kBadArgument;
    }
    if (const int32_t error = check(layer.down[e])) return error;
    if (!readable(layer.down[e])) return kBadArgument;
    if (layer.down[e].n != layer.features || layer.down[e].k != layer.inner) return kBadArgument;
  }
  return 0;
}

}  // namespace
}  // namespace qd

extern "C" int32_t qd_moe(const qd_weight* gate, const qd_weight* up, const qd_weight* down, int64_t experts,
                          int32_t activation, const void* x, int64_t tokens, int64_t x_stride, const int64_t* index,
                          const float* weights, int64_t top_k, void* y, int64_t y_stride, int32_t dtype,
                          int32_t threads) {
  using namespace qd;
  if (!gate || experts <= 0) return kBadArgument;
  const int32_t hidden = tokens <= isa_in_use().wide_tokens ? static_cast<int32_t>(QD_FP32) : dtype;
  const Layer layer{gate,   up,     down,  experts, activation,
                    {x, x_stride, dtype, nullptr},
                    tokens, index,  weights, top_k, static_cast<char*>(y), y_stride,
                    dtype,  hidden, std::max(threads, 1), gate->k, gate->n};
  if (tokens == 0) return 0;
  if (const int32_t error = check_layer(layer)) return error;
  try {
    const int64_t block = std::max<int64_t>(kSumBytes / (layer.features * 4), 1);
    const std::unique_ptr<float[]> sums(new float[static_cast<size_t>(std::min(block, tokens) * layer.features)]);
    for (int64_t begin = 0; begin < tokens; begin += block)
      run_block(layer, isa_in_use(), begin, std::min(begin + block, tokens), sums.get());
  } catch (...) {  // no memory
    return kFailed;
  }
  return 0;
}
