// Activations of gated experts.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace qd {

// hidden[i] = act(gate[i]) * up[i], or act(gate[i]) where up is null, for i in [0, count), as `dtype` (bf16, fp16, fp32).
//
// What a model does in tensors of `dtype` is rounded as there: gate and up as the projections give them out, the
// activation, the product. Each of them is computed in fp32. So the result is the model's own but for the last bit of
// exp, erf or tanh. gate is scratch: it is written over.
void apply_gate(int32_t activation, float* gate, const float* up, int64_t count, void* hidden, int32_t dtype);

}  // namespace qd
