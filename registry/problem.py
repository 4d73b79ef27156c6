"""What a plan tells beside its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Problem:
    """``code``: stable and short. ``where``: a key path, module, file or distribution; empty for the whole."""

    code: str
    message: str
    severity: Severity = "warning"
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where and self.where not in self.message else self.message

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "severity": self.severity, "where": self.where}
