"""What a scheme is: the numeric contract of a layer, declared without torch.

A scheme has two halves. This one says which tensors are stored, in which shapes and dtypes, and what a kernel is asked
for; it is imported to explain a plan. The other half, named by :attr:`Scheme.numerics`, is plain torch and imported
only to load or run a layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from .facts import KernelSpec, LayerFacts
from .operands import Operands


class TensorInfo(Protocol):
    """One entry of a safetensors header. ``dtype`` is the file's own code: I32, I64, I8, U8, BF16, F32, F8_E4M3."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def read(self) -> bytes | None:
        """The raw little-endian bytes, or ``None`` where only headers are at hand (a hub id)."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that the layer has in the file, for known N and K.

    ``name``: local, e.g. ``weight_packed``. ``shapes``: every admissible shape. ``dtypes``: safetensors codes.
    ``axes``: what each axis runs along: ``"out"``, ``"in"``, ``"group"`` (groups of in), ``"block_out"``,
    ``"block_in"`` or ``""`` for neither; tensor-parallel sharding follows from it (``packed`` names the axis whose
    elements are packed, and how many values a word holds times its bits divided by 32 need not be whole).
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: frozenset[str]
    axes: tuple[str, ...] = ()
    packed: str | None = None
    required: bool = True


@dataclass(frozen=True)
class LayerShape:
    """Outputs and inputs of a layer as its stored tensors tell them; ``packing`` is ``"dense"`` or ``"padded"``."""

    n: int
    k: int
    packing: str | None = None


def scheme_fault(scheme: Any) -> str | None:
    """What a rule's scheme is instead of a class of schemes that can be made, or ``None``."""
    if not (isinstance(scheme, type) and issubclass(scheme, Scheme)):
        return "not a subclass of Scheme"
    missing = sorted(getattr(scheme, "__abstractmethods__", ()))
    return f"a Scheme without {', '.join(missing)}" if missing else None


class Scheme(ABC):
    """One layer's scheme, bound to its quant args. Subclasses are stateless beyond the arguments."""

    name: ClassVar[str]
    #: ``"module:attr"`` of a class with the interface of :class:`Numerics`, or of :class:`CacheNumerics` where what is
    #: quantized is a cache
    numerics: ClassVar[str]
    #: writers of the format store a bias for every layer, all zeros where the model has none
    may_pad_bias: ClassVar[bool] = False

    def __init__(self, layer: LayerFacts, *, version: str | None = None) -> None:
        """``version``: of compressed-tensors that wrote the checkpoint, where the layout depends on it."""
        self.layer = layer
        self.version = version

    @abstractmethod
    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        """The tensors of a layer of this shape, ``bias`` left out (every scheme may have one, [N])."""

    @abstractmethod
    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Local names (required, optional) without needing a shape."""

    @abstractmethod
    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape | None:
        """N, K and packing from the layer's headers (local names), ``None`` for a scheme without a weight matrix.

        Raises ``CheckpointError`` naming the tensor when one is missing or they contradict each other.
        """

    def check(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape | None:
        """Compare a layer's headers with :meth:`stored`: presence, dtype, shape, K against the group size.

        Raises ``CheckpointError`` naming layer, tensor, observed and required. Left-over tensors are the plan's to
        report. The default is generic and rarely overridden.
        """
        from .tensor_checks import check_layer

        return check_layer(self, name, tensors)

    @abstractmethod
    def kernel_spec(self, shape: LayerShape | None, dtype: str, *, tensors: frozenset[str] = frozenset()) -> KernelSpec:
        """What a kernel must compute; ``shape`` is ``None`` while unknown, ``tensors`` the local names present."""


class Numerics(Protocol):
    """The torch half of a scheme. ``Any`` stands for ``torch.Tensor`` (this package never imports torch)."""

    def __init__(self, scheme_layer: LayerFacts) -> None: ...

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        """Stored tensors (local names, ``bias`` included) to operands. Raises ``CheckpointError`` naming the tensor
        on NaN, infinite, zero or negative scales, or values out of range."""

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        """The inverse: the tensors as compressed-tensors writes them (dense packing, offset-binary, local names)."""

    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Any:
        """The weight [N, K], equal to compressed-tensors' decompression bit for bit when ``dtype`` is ``None``."""

    def forward(self, x: Any, operands: Operands) -> Any:
        """x [..., K] to [..., N] in x's dtype, bias added: the numeric truth for every kernel."""


class CacheNumerics(Protocol):
    """The torch half of a scheme without a weight matrix: what is quantized are keys, values and queries, ``part``
    ``"k"``, ``"v"`` or ``"q"``, of [..., heads, length, head_dim]."""

    def __init__(self, scheme_layer: LayerFacts) -> None: ...

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape | None, name: str) -> Operands: ...

    def stored(self, operands: Operands, shape: LayerShape | None) -> dict[str, Any]: ...

    def quantize(self, part: str, states: Any, operands: Operands) -> Any:
        """States to the codes that the cache stores."""

    def dequantize(self, part: str, codes: Any, operands: Operands, dtype: Any) -> Any:
        """Codes to states in ``dtype``."""


class KernelImpl(Protocol):
    """One kernel bound to one layer. Holds no tensors: they live in the module's buffers as ``state``.

    Instances are small, picklable and deep-copyable.
    """

    def __init__(self, spec: KernelSpec) -> None: ...

    def pack(self, operands: Operands) -> dict[str, Any]:
        """Operands to the kernel's own layout: name to tensor, on the operands' device."""

    def unpack(self, state: Mapping[str, Any]) -> Operands:
        """The inverse, lossless in codes, scales (dtype included), zero points, g_idx, input parameters, bias."""

    def apply(self, x: Any, state: Mapping[str, Any]) -> Any:
        """x [..., K], contiguous or not, to [..., N] in x's dtype, bias added. Traceable by torch.compile.

        Of op ``embedding``: indices [...] to [..., K] in ``spec.dtype``. Kernels of op ``kv_cache`` have ``quantize``
        and ``dequantize`` as :class:`CacheNumerics` does, with the state for operands, and the dtype is
        ``spec.dtype``.
        """
