// The weight-only product on AVX-512 with bf16: which algorithm a call takes, and the decoder of its format.
// Codes are exact in bf16, sums are fp32, scales and zero points are applied to the sums of a span. Up to four rows go
// through avx512_rows.h, more through avx512_gemm.h; both add up in the same order, so a row's result does not depend on
// which of them does it.
#if defined(__x86_64__) || defined(__i386__)
#include "avx512_gemm.h"
#include "avx512_prepare.h"

namespace qd {
namespace {

// From this many rows on, scales or zero points are folded into codes where that is exact. Fixed by the call's rows, not by a share of
// them, as it changes how sums are rounded.
constexpr int64_t kFoldRows = 12;
enum Mode { kUnfolded, kFolding };
// fp32 rows are multiplied in three parts. Where the weights' way from memory is the longer one that is for nothing.
constexpr int64_t kWideTokens = 16;

Work plan(const Shape& shape, int64_t m, int32_t dtype) {
  Work work{};
  work.m = m;
  work.dtype = dtype;
  work.mode = m >= kFoldRows ? kFolding : kUnfolded;
  work.step = ceil_div(m, ceil_div(m, kBlockRows));
  work.bytes = prepared_bytes(shape, work);
  work.scratch = sizeof(Stretch);
  return work;
}

template <class Codes>
void run(const Operand& op, int64_t m, Fold fold, const Work& work, void* scratch) {
  const Codes codes(op.shape.format);
  const int64_t size = block_size(op.shape, work);
  if (fold == kScales) return many_rows<kScales>(codes, op, m, work.step, size, *(Stretch*)scratch);
  if constexpr (Codes::kNibbles)
    if (fold == kZeros) return many_rows<kZeros>(codes, op, m, work.step, size, *(Stretch*)scratch);
  switch (m) {
    case 1: return few_rows_of_tile<1>(codes, op);
    case 2: return few_rows_of_tile<2>(codes, op);
    case 3: return few_rows_of_tile<3>(codes, op);
    case 4: return few_rows_of_tile<4>(codes, op);
    default: return many_rows<kPlain>(codes, op, m, work.step, size, *(Stretch*)scratch);
  }
}

void tile(const qd_weight& weight, const Shape& shape, const Work& work, int64_t begin, int64_t end, int64_t index,
          float* out, int64_t ld, void* scratch, const Next&) {
  if (end <= begin) return;
  const Tile at(weight, shape, index);
  const Operand op{weight,    shape, at, block_at(shape, work, begin / work.step),
                   work.step, shape.padded_k() / 2 * work.step, parts_of(work.dtype), sums_at(shape, work, begin),
                   out,       ld};
  const Fold fold = work.mode == kFolding ? foldable(weight, shape, at, shape.outputs(index)) : kPlain;
  const int64_t m = end - begin;
  if (shape.format == QD_FP8) {
    run<Fp8Codes>(op, m, fold, work, scratch);
  } else {
    switch (shape.slot_bits) {
      case 2: run<TableCodes<2>>(op, m, fold, work, scratch); break;
      case 3: run<TableCodes<3>>(op, m, fold, work, scratch); break;
      case 4: run<TableCodes<4>>(op, m, fold, work, scratch); break;
      case 5: run<TableCodes<5>>(op, m, fold, work, scratch); break;
      default: run<Int8Codes>(op, m, fold, work, scratch); break;
    }
  }
  if (weight.unit != 1) multiply_units(weight.unit, m, at.width, out, ld);
}

}  // namespace

const Isa& avx512() {
  // A multiple of the rows of a block; so many that decoding the weights is a small part of the work, and so few that
  // the prepared rows stay in a cache.
  static const Isa isa = {384, kWideTokens, plan, prepare, tile, store};
  return isa;
}

}  // namespace qd
QD_AVX512_END
#endif
