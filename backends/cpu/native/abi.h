// The C ABI of the native CPU kernels: all that Python knows of them. docs/cpu-native.md describes the layout.
#pragma once
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

#define QD_ABI_VERSION 2

// Dtypes of activations and scales.
enum qd_dtype { QD_BF16 = 0, QD_FP16 = 1, QD_FP32 = 2, QD_E8M0 = 3, QD_E4M3 = 4 };
// Added to the dtype of x given to qd_linear: y is fp32, whatever x is.
#define QD_WIDE 8
// What a slot holds: an integer plus 2^(slot_bits-1), an e2m1 nibble, an e4m3 byte.
enum qd_format { QD_INT = 0, QD_FP4 = 1, QD_FP8 = 2 };
// The last two have the same instructions, and multiply bf16 pairs or bytes: which is faster, a processor's maker decided.
enum qd_isa { QD_PORTABLE = 0, QD_AVX2 = 1, QD_AVX512 = 2, QD_AVX512_VNNI = 3 };
// Of experts.
enum qd_activation { QD_SILU = 0, QD_GELU = 1, QD_GELU_TANH = 2 };

// A packed weight of N outputs and K inputs.
typedef struct qd_weight {
  int64_t n, k;
  int64_t group;   // columns of a group; K where there is one scale an output
  int64_t groups;  // ceil(k / group)
  int32_t format, slot_bits;
  int32_t scale_dtype, zero_bits;  // zero_bits: 0 (none), 4 (two to a byte) or 8
  float unit;                      // factor of all scales
  int32_t reserved;
  const uint32_t* packed;
  const void* scale;
  const uint8_t* zero;
  const int32_t* columns;  // [groups * group] or null
  const float* bias;       // [n] or null
} qd_weight;

// y[m, n] = x[m, k] @ weight.T + bias. Strides in elements. 0, or a negative error code for arguments out of range.
int32_t qd_linear(const qd_weight* weight, const void* x, int64_t m, int64_t x_stride, void* y, int64_t y_stride,
                  int32_t dtype, int32_t threads);

// As qd_linear, with x quantized to int8 (or fewer bits) codes: per row (x_scale null: dynamic, symmetric or not) or by
// one given scale and zero point for all rows. bits: of the codes, 2 to 8.
typedef struct qd_inputs {
  int32_t bits, symmetric;
  int32_t dynamic, per_tensor;  // dynamic per_tensor: one scale for all rows of the call
  float scale, zero_point;      // of static inputs
} qd_inputs;
int32_t qd_linear_int8(const qd_weight* weight, const qd_inputs* inputs, const void* x, int64_t m, int64_t x_stride,
                       void* y, int64_t y_stride, int32_t dtype, int32_t threads);

// Experts of a layer: y[t] = sum_j weights[t, j] * down(act(gate(x[t])) * up(x[t])) of expert index[t, j], each its own
// qd_weight with a format of its own. `up` null: experts without a gate, down(act(gate(x[t]))). All gates and ups have
// the same n and k, which is the downs' k and n. An index outside 0..experts-1 adds nothing.
int32_t qd_moe(const qd_weight* gate, const qd_weight* up, const qd_weight* down, int64_t experts, int32_t activation,
               const void* x, int64_t tokens, int64_t x_stride, const int64_t* index, const float* weights,
               int64_t top_k, void* y, int64_t y_stride, int32_t dtype, int32_t threads);

// codes: int8 [n, k] (integers), or bytes (e2m1 nibbles in a byte each, e4m3 bytes). columns as in qd_weight. Packing
// takes e2m1 values as e4m3 bytes too, which are told apart by being no number below 16, and refuses others.
int32_t qd_pack(const qd_weight* shape, const uint8_t* codes, uint32_t* packed, int32_t threads);
// Is there a NaN among e4m3 codes? 0 or 1.
int32_t qd_any_nan(const uint8_t* codes, int64_t count);
int32_t qd_unpack(const qd_weight* weight, uint8_t* codes, int32_t threads);
// Single outputs: codes of rows index[0..count) as uint8 [count, k].
int32_t qd_unpack_rows(const qd_weight* weight, const int64_t* index, int64_t count, uint8_t* codes);

// y[m, n] = x[m, k] @ weight.T + bias, all of them bf16 and as torch stores them, summed in fp32. Strides in elements,
// bias may be null. Negative where the instruction set in use has no such kernel (portable).
int32_t qd_dense(const void* weight, int64_t n, int64_t k, int64_t stride, const void* bias, const void* x, int64_t m,
                 int64_t x_stride, void* y, int64_t y_stride, int32_t threads);

int32_t qd_abi_version(void);
int32_t qd_isa(void);           // in use
int32_t qd_isa_best(void);      // of this processor
int32_t qd_set_isa(int32_t isa);  // 0, or negative where the processor lacks it
// Addresses of GOMP_parallel and omp_get_thread_num of the OpenMP runtime to share, or nulls.
void qd_set_pool(void* gomp_parallel, void* omp_get_thread_num);
// The exclusive or of all words: reads memory and does little else, to measure how fast that can be. In 1 or 4 streams.
uint64_t qd_read(const uint64_t* words, int64_t count, int32_t streams);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
