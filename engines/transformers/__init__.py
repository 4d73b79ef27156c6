"""transformers: ``enable()`` makes plain ``from_pretrained`` load packed weights, ``disable()`` undoes it.

Importing this imports transformers; importing ``quantdispatch`` does not.
"""

from .quantizer import QuantDispatchHfQuantizer
from .switch import disable, enable, is_enabled

__all__ = ["QuantDispatchHfQuantizer", "disable", "enable", "is_enabled"]
