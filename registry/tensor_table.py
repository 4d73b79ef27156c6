"""The tensors of all files of a checkpoint together, and those of one layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from .stored_tensors import Header, Stored, TensorEntry, TensorKind


class TensorTable(Mapping[str, TensorEntry]):
    """All tensors of a checkpoint by full name, in the order of its files and of the data in them.

    ``modules``: what each module stores, in the order in which the modules first appear. ``repeated``: some tensor is
    in two files; :func:`.checkpoint.assemble` refuses it.
    """

    __slots__ = ("_where", "headers", "modules", "repeated")

    def __init__(self, headers: Iterable[Header] = ()) -> None:
        self.headers = tuple(headers)
        self.modules = _modules(self.headers)
        different = {id(stored): stored for stored in self.modules.values()}
        self.repeated = any(stored.repeated for stored in different.values()) and _repeats(self.headers)
        self._where: dict[str, Header] = {}

    def __len__(self) -> int:
        return sum(map(len, self.headers))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(header.names for header in self.headers)

    def __getitem__(self, name: str) -> TensorEntry:
        if not self._where:  # a plan needs a few kinds of layers, and hardly ever a tensor
            for header in self.headers:
                self._where.update(dict.fromkeys(header.names, header))
        return self._where[name][name]


def _modules(headers: Iterable[Header]) -> dict[str, Stored]:
    same: dict[tuple[str, str, tuple[int, ...]], TensorKind] = {}
    nothing = Stored({})
    modules: dict[str, Stored] = {}
    for header in headers:
        # one object for what is the same in several files
        shared: dict[int, Stored] = {}
        for stored in {id(stored): stored for stored in header.stored.values()}.values():
            one = nothing
            for kind in stored.kinds.values():
                one = one[same.setdefault((kind.tail, kind.dtype, kind.shape), kind)]
            shared[id(stored)] = one
        own = dict(zip(header.stored, map(shared.__getitem__, map(id, header.stored.values())), strict=True))
        split = () if modules.keys().isdisjoint(own) else [name for name in own if name in modules]
        for name in split:
            one = modules[name]
            for kind in own.pop(name).kinds.values():
                one = one[kind]
            modules[name] = one
        modules.update(own)
    return modules


def _repeats(headers: Iterable[Header]) -> bool:
    names = [name for header in headers for name in header.names]
    return len(set(names)) != len(names)


class LayerTensors(Mapping[str, TensorEntry]):
    """One layer's tensors by local name (``weight_packed``), looked up when asked for.

    ``kinds``: what the header says of each, in the file's order.
    """

    __slots__ = ("_layer", "_table", "kinds")

    def __init__(self, table: Mapping[str, TensorEntry], layer: str, kinds: Mapping[str, TensorKind]) -> None:
        self._table = table
        self._layer = layer
        self.kinds = kinds

    def of(self, layer: str) -> LayerTensors:
        """The tensors of another layer that stores the same."""
        return LayerTensors(self._table, layer, self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __contains__(self, local: object) -> bool:
        return local in self.kinds

    def __getitem__(self, local: str) -> TensorEntry:
        # a tensor of a module below has its own module's tail
        return self._table[self._layer + (f".{local}" if "." in local else self.kinds[local].tail)]

    def __repr__(self) -> str:
        return f"LayerTensors({dict(self)!r})"


class TensorFact:
    """What a plan knows of one tensor without looking it up: as much as a scheme's checks ask."""

    __slots__ = ("_kind", "_layer", "dtype", "name", "shape")

    def __init__(self, layer: LayerTensors, local: str) -> None:
        self._layer = layer
        self._kind = layer.kinds[local]
        self.name = local
        self.dtype = self._kind.dtype
        self.shape = self._kind.shape

    def read(self) -> bytes | None:
        """The raw little-endian bytes, or ``None`` where only headers are at hand."""
        return self._layer[self.name].read() if self._kind.value is None else self._kind.value
