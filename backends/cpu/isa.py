"""What this processor computes natively, asked of the libraries once."""

from __future__ import annotations

import torch

#: Does a bf16 product run on bf16 instructions? Without them it is slower than fp32 by up to seven times. A constant,
#: not a function, because torch.compile cannot trace the question.
NATIVE_BF16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
