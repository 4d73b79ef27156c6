"""Real and tiny compressed-tensors checkpoints, written by compressed-tensors itself and made without a network.

`variants` says what can be made, `smollm2` makes it of a real language model, `tiny` of random weights within a second.
"""

from .smollm2 import MissingSource, smollm2_base, smollm2_variant
from .tiny import tiny_model
from .variants import VARIANTS, Variant

__all__ = ["VARIANTS", "MissingSource", "Variant", "smollm2_base", "smollm2_variant", "tiny_model"]
