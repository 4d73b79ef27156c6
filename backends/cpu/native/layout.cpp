// Codes to tiles of dwords and back. docs/cpu-native.md describes the layout.
#include <string.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels.h"
#include "threads.h"

namespace qd {
namespace {

constexpr int64_t kTogether = 8;  // outputs packed at once: 32 bytes of a dword row

template <class Word>
Word load(const uint8_t* bytes) {
  Word value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

// Four values (three of five bits) in the low bits of 16-bit lanes, to fields of `Bits` side by side: one multiplication
// moves them all.
template <int Bits>
uint32_t join(uint64_t lanes) {
  constexpr uint64_t fourth = Bits < 5 ? uint64_t{1} << (3 * Bits) : 0;
  constexpr uint64_t move =
      (uint64_t{1} << 48) | (uint64_t{1} << (32 + Bits)) | (uint64_t{1} << (16 + 2 * Bits)) | fourth;
  return static_cast<uint32_t>((lanes * move) >> 48);
}

// A dword of the codes of 2 * (16 / Bits) columns, low bits first, even columns in the low word.
template <int Bits>
uint32_t dword_of(const uint8_t* codes) {
  constexpr int slots = 16 / Bits;
  constexpr uint32_t mask = (1u << Bits) - 1;
  if constexpr (Bits == 8) {
    const uint32_t raw = load<uint32_t>(codes);
    return (raw & 0xff0000ff) | ((raw >> 8) & 0xff00) | ((raw & 0xff00) << 8);
  } else {
    constexpr uint64_t lanes = (slots == 3 ? 0x0000000100010001u : 0x0001000100010001u) * uint64_t{mask};
    // of three slots, 6 bytes, 8 may not be there
    uint64_t raw = slots == 3 ? load<uint32_t>(codes) | uint64_t{load<uint16_t>(codes + 4)} << 32 : load<uint64_t>(codes);
    uint32_t even = join<Bits>(raw & lanes), odd = join<Bits>((raw >> 8) & lanes);
    if constexpr (slots == 8) {
      raw = load<uint64_t>(codes + 8);
      even |= join<Bits>(raw & lanes) << 8;
      odd |= join<Bits>((raw >> 8) & lanes) << 8;
    } else if constexpr (slots == 5) {
      even |= (codes[8] & mask) << (4 * Bits);
      odd |= (codes[9] & mask) << (4 * Bits);
    }
    return even | odd << 16;
  }
}

// Integers are stored plus 2^(bits-1), which in `bits` bits turns the top one over.
uint32_t flips(const Shape& shape) {
  if (shape.format != QD_INT) return 0;
  uint32_t flip = 0;
  for (int j = 0; j < shape.slots; ++j) flip |= 0x00010001u << (shape.slot_bits * (j + 1) - 1);
  return flip;
}

// Eight bytes that say e2m1 values, as nibbles or as e4m3 (0, .5, 1, 1.5, 2, 3, 4, 6 are 0, 0x30, 0x38, 0x3c, 0x40, 0x44,
// 0x48, 0x4c), to nibbles. `wrong` gets a bit where a byte says none.
uint64_t nibbles_of(uint64_t bytes, uint64_t& wrong) {
  constexpr uint64_t ones = 0x0101010101010101u;
  if ((bytes & (0xf0 * ones)) == 0) return bytes;
  const uint64_t b2 = bytes >> 2, b3 = bytes >> 3, b4 = bytes >> 4, b5 = bytes >> 5, b6 = bytes >> 6;
  wrong |= ((b4 ^ b5) | (b5 & b6) | (b5 & ~b3 & b2) | (~b5 & ~b6 & (b3 | b2)) | bytes | (bytes >> 1)) & ones;
  return (b4 & (12 * ones)) | (b2 & (3 * ones)) | (b5 & ~b3 & ones);
}

// The codes of one output by position, padding zeros. Where no column moves and no code changes nothing is copied.
class Positions {
 public:
  explicit Positions(const Shape& shape)
      : shape_(shape),
        plain_(shape.columns == nullptr && shape.padded_k() == shape.k && shape.format != QD_FP4),
        buffer_(plain_ ? 0 : static_cast<size_t>(shape.padded_k() * kTogether)) {}

  bool all_known() const { return known_; }

  const uint8_t* of(const uint8_t* codes, int64_t slot) {
    if (plain_) return codes;
    uint8_t* const out = buffer_.data() + slot * shape_.padded_k();
    if (shape_.columns == nullptr && shape_.padded_k() == shape_.k) {
      memcpy(out, codes, static_cast<size_t>(shape_.k));
      shorten(out);
      return out;
    }
    for (int64_t g = 0; g < shape_.groups; ++g) {
      uint8_t* const to = out + g * shape_.padded_group();
      if (shape_.columns == nullptr) {
        memcpy(to, codes + g * shape_.group, static_cast<size_t>(shape_.group_columns(g)));
        continue;
      }
      const int32_t* const columns = shape_.columns + g * shape_.group;
      for (int64_t p = 0; p < shape_.group; ++p) to[p] = columns[p] < 0 ? uint8_t{0} : codes[columns[p]];
    }
    if (shape_.format == QD_FP4) shorten(out);
    return out;
  }

 private:
  void shorten(uint8_t* codes) {
    uint64_t wrong = 0, bytes;
    const int64_t count = shape_.padded_k();  // a multiple of 8
    for (int64_t p = 0; p < count; p += 8) {
      memcpy(&bytes, codes + p, 8);
      bytes = nibbles_of(bytes, wrong);
      memcpy(codes + p, &bytes, 8);
    }
    known_ = known_ && wrong == 0;
  }

  const Shape& shape_;
  bool plain_, known_ = true;
  std::vector<uint8_t> buffer_;
};

template <int Bits>
void pack_tile(const Shape& shape, const uint8_t* codes, int64_t t, Positions& positions, const uint8_t* zeros,
               uint32_t* out) {
  const int64_t width = shape.width(t), outputs = shape.outputs(t);
  const uint32_t flip = flips(shape);
  for (int64_t o = 0; o < width; o += kTogether) {
    const uint8_t* from[kTogether];
    for (int64_t i = 0; i < kTogether; ++i)
      from[i] = o + i < outputs ? positions.of(codes + (t * kTile + o + i) * shape.k, i) : zeros;
    uint32_t* to = out + o;
    for (int64_t r = 0; r < shape.rows; ++r, to += width)
      for (int64_t i = 0; i < kTogether; ++i) to[i] = dword_of<Bits>(from[i] + r * (2 * (16 / Bits))) ^ flip;
  }
}

using PackTile = void (*)(const Shape&, const uint8_t*, int64_t, Positions&, const uint8_t*, uint32_t*);

PackTile pack_tile_of(int32_t slot_bits) {
  switch (slot_bits) {
    case 2: return pack_tile<2>;
    case 3: return pack_tile<3>;
    case 4: return pack_tile<4>;
    case 5: return pack_tile<5>;
    default: return pack_tile<8>;
  }
}

// Of `count` outputs that lie side by side, from the first one's dwords `from` in a tile of `width`: rows of k codes.
void unpack_outputs(const Shape& shape, const uint32_t* from, int64_t width, int64_t count, uint8_t* out) {
  const uint32_t mask = (1u << shape.slot_bits) - 1;
  const uint32_t offset = shape.format == QD_INT ? 1u << (shape.slot_bits - 1) : 0;
  for (int64_t g = 0; g < shape.groups; ++g)
    for (int64_t r = 0; r < shape.group_rows; ++r) {
      const uint32_t* const dwords = from + (g * shape.group_rows + r) * width;
      for (int64_t c = 0; c < shape.dword_columns; ++c) {
        const int64_t column = shape.column(g, r * shape.dword_columns + c);
        if (column < 0) continue;
        const int shift = static_cast<int>((c & 1) * 16 + (c >> 1) * shape.slot_bits);
        for (int64_t i = 0; i < count; ++i)
          out[i * shape.k + column] = static_cast<uint8_t>(((dwords[i] >> shift) & mask) - offset);
      }
    }
}

int32_t guarded(const qd_weight* weight, int32_t (*body)(const qd_weight&, void*), void* context) {
  if (weight == nullptr) return -1;
  if (const int32_t error = check(*weight)) return error;
  try {
    return body(*weight, context);
  } catch (...) {
    return -9;
  }
}

struct Call {
  const uint8_t* codes;
  uint32_t* packed;
  uint8_t* out;
  const int64_t* index;
  int64_t count;
  int32_t threads;
};

int32_t pack(const qd_weight& weight, void* context) {
  const Call& call = *static_cast<const Call*>(context);
  const Shape shape(weight);
  const PackTile pack_one = pack_tile_of(shape.slot_bits);
  const std::vector<uint8_t> zeros(static_cast<size_t>(shape.padded_k()) + 8);
  std::atomic<bool> known{true};
  parallel_for(
      shape.tiles, call.threads,
      [&](int64_t begin, int64_t end, int32_t) {
        Positions positions(shape);
        for (int64_t t = begin; t < end; ++t)
          pack_one(shape, call.codes, t, positions, zeros.data(), call.packed + t * kTile * shape.rows);
        if (!positions.all_known()) known = false;
      },
      shape.n * shape.k);
  return known ? 0 : -5;
}

int32_t unpack(const qd_weight& weight, void* context) {
  const Call& call = *static_cast<const Call*>(context);
  const Shape shape(weight);
  parallel_for(
      shape.tiles, call.threads,
      [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
          const Tile tile(weight, shape, t);
          for (int64_t o = 0; o < shape.outputs(t); o += kTogether)
            unpack_outputs(shape, tile.codes + o, tile.width, std::min(kTogether, shape.outputs(t) - o),
                           call.out + (t * kTile + o) * shape.k);
        }
      },
      shape.n * shape.k);
  return 0;
}

int32_t unpack_rows(const qd_weight& weight, void* context) {
  const Call& call = *static_cast<const Call*>(context);
  const Shape shape(weight);
  for (int64_t i = 0; i < call.count; ++i)
    if (call.index[i] < 0 || call.index[i] >= shape.n) return -4;
  for (int64_t i = 0; i < call.count; ++i) {
    const Tile tile(weight, shape, call.index[i] / kTile);
    unpack_outputs(shape, tile.codes + call.index[i] % kTile, tile.width, 1, call.out + i * shape.k);
  }
  return 0;
}

}  // namespace
}  // namespace qd

extern "C" {

int32_t qd_any_nan(const uint8_t* codes, int64_t count) {
  uint8_t found = 0;
  for (int64_t p = 0; p < count; ++p) found |= static_cast<uint8_t>((codes[p] & 0x7f) == 0x7f);
  return found != 0;
}

int32_t qd_pack(const qd_weight* shape, const uint8_t* codes, uint32_t* packed, int32_t threads) {
  qd::Call call{codes, packed, nullptr, nullptr, 0, threads};
  return codes && packed ? qd::guarded(shape, qd::pack, &call) : -1;
}

int32_t qd_unpack(const qd_weight* weight, uint8_t* codes, int32_t threads) {
  qd::Call call{nullptr, nullptr, codes, nullptr, 0, threads};
  return weight && weight->packed && codes ? qd::guarded(weight, qd::unpack, &call) : -1;
}

int32_t qd_unpack_rows(const qd_weight* weight, const int64_t* index, int64_t count, uint8_t* codes) {
  qd::Call call{nullptr, nullptr, codes, index, count, 1};
  return weight && weight->packed && index && codes ? qd::guarded(weight, qd::unpack_rows, &call) : -1;
}

}  // extern "C"
