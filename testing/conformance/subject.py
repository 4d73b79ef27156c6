"""What is put to the test, as a class: attributes say what it is and what it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ...registry.errors import QuantDispatchError
from ...registry.registry import Registry
from ..registries import registry_with
from .checks import GOOD, KIT, Check, Checks, Item, Result, perform
from .layers import CAPABILITIES, Layer

if TYPE_CHECKING:
    import pytest


class Conformance:
    """Base of :class:`.BackendConformance` and :class:`.SchemeConformance`: subclass one of these in a test module,
    under a name that begins with ``Test``, and pytest runs one test for each check.

    ``plugins``: modules, their names, or single rules, kernels and backends, as :func:`.registry_with` takes them; they
    need not be installed. ``capabilities``: names of :data:`.CAPABILITIES`; what is declared must be there, and what is
    there must be declared. ``expected_failures``: from a check's id (or its beginning, or a pattern) to the reason;
    each must fail. ``layers``: further ones, beside the usual. ``most_layers``: that each part is tried with.
    ``kit``: the version of the kit that the class was written for; checks that came later are skipped.
    """

    kit: ClassVar[str] = KIT
    plugins: ClassVar[Sequence[Any]] = ()
    capabilities: ClassVar[frozenset[str] | set[str]] = frozenset()
    expected_failures: ClassVar[Mapping[str, str]] = {}
    layers: ClassVar[Sequence[Layer]] = ()
    most_layers: ClassVar[int] = 24
    #: of ``most_layers`` those that checks of a life cycle are made with
    most_samples: ClassVar[int] = 4
    checks: ClassVar[Checks]
    kind: ClassVar[str]

    # -- for subclasses to say more

    @property
    def name(self) -> str:
        """What is tested, for the report."""
        return type(self).__name__

    def surroundings(self) -> AbstractContextManager[Any]:
        """Entered round collecting and round every check: an interpreter's switch, a stand-in for a provider."""
        return nullcontext()

    def fits(self, layer: Layer) -> bool:
        """Has the format, or the kernel, a form of this layer at all? Sizes that no file can have are left out here,
        not those that are merely refused."""
        return True

    def parts(self) -> Sequence[str]:
        """Names of the kernels or rules that are tested."""
        return ()

    def layers_of(self, part: str) -> Sequence[Layer]:
        """The layers that ``part`` is tried with."""
        return ()

    def ask(self, item: Item) -> None:
        """Runs one check. Raises what it raises."""
        item.check.function(self, *(value for value in (item.part, item.layer) if value))

    # -- the whole

    @property
    def registry(self) -> Registry:
        """What is built in with ``plugins``. Raises ``PluginError`` where something of them would be left out."""
        if not self._built:
            self._built.append(_registry(tuple(self.plugins)))
        return self._built[0]

    #: by part; pytest makes an instance for each test, so the class remembers
    _layers: ClassVar[dict[str, list[Layer]]]
    _built: ClassVar[list[Registry]]

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls._layers, cls._built = {}, []

    def chosen_layers(self, part: str) -> list[Layer]:
        """:meth:`layers_of`, asked once."""
        if part not in self._layers:
            self._layers[part] = list(self.layers_of(part))
        return self._layers[part]

    def items(self) -> list[Item]:
        """Everything that there is to check. Where the plugins cannot be collected: that."""
        with self.surroundings():
            found = [Item(check) for check in self.checks.all if check.scope == "subject"]
            try:
                _ = self.registry
            except QuantDispatchError:
                return found
            for part in self.parts():
                found += [Item(check, part) for check in self.checks.all if check.scope == "part"]
                layers = self.chosen_layers(part)
                for check in self.checks.all:
                    few = {"layer": layers, "sample": layers[: self.most_samples]}.get(check.scope, [])
                    found += [Item(check, part, layer) for layer in few]
            return found

    def perform(self, item: Item) -> Result:
        """One check, and what comes of it."""
        reason = self._left_out(item.check)
        if reason is not None:
            return Result(item, "skipped", reason)

        def ask() -> None:
            with self.surroundings():
                self.ask(item)

        return perform(item, ask, self.expected(item))

    def expected(self, item: Item) -> str | None:
        """Why ``item`` is expected to fail, or ``None``."""
        return next((reason for key, reason in self.expected_failures.items() if _means(key, item)), None)

    def undeclared(self) -> Iterator[str]:
        """What the class says that cannot be meant."""
        major = KIT.partition(".")[0]
        if self.kit.partition(".")[0] != major:
            yield f"written for kit {self.kit}, this is {KIT}: read CHANGELOG, adapt the class, and say kit = {KIT!r}"
        for name in sorted(set(self.capabilities) - set(CAPABILITIES)):
            yield f"capabilities has {name!r}; there are {', '.join(CAPABILITIES)}"
        items = self.items()
        for key in self.expected_failures:
            if not any(_means(key, item) for item in items):
                yield f"expected_failures has {key!r}, which no check is called"

    def _left_out(self, check: Check) -> str | None:
        if _number(check.since) > _number(self.kit):
            return f"came with kit {check.since}, the class asks for {self.kit}"
        if check.needs is not None and check.needs not in self.capabilities:
            return f"the capability {check.needs!r} is not declared"
        return None

    # -- pytest

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test a check, part and layer."""
        if "conformance_item" in metafunc.fixturenames:
            items = self.items()
            metafunc.parametrize("conformance_item", items, ids=[item.id for item in items])

    def test_conformance(self, conformance_item: Item, record_property: Callable[[str, object], None]) -> None:
        """One check. Its result is what ``--quantdispatch-report`` collects."""
        __tracebackhide__ = True
        import pytest

        result = self.perform(conformance_item)
        record_property("quantdispatch", {**self.to_json(), "result": result.to_json()})
        if result.outcome == "skipped":
            pytest.skip(result.message)
        if result.outcome == "expected failure":
            pytest.xfail(result.message)
        if result.outcome not in GOOD:
            pytest.fail(f"{conformance_item.id}\n  {result.message}", pytrace=False)

    def to_json(self) -> dict[str, Any]:
        """What is tested: name, kind, kit, capabilities."""
        return {"name": self.name, "kind": self.kind, "kit": self.kit, "capabilities": sorted(self.capabilities)}


@cache
def _registry(plugins: tuple[Any, ...]) -> Registry:
    return registry_with(*plugins)


def _means(key: str, item: Item) -> bool:
    return item.id == key or item.id.startswith((f"{key} ", f"{key}:")) or fnmatchcase(item.id, key)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
