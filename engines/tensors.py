"""safetensors entries to torch tensors and back, without mapping a file into memory.

A mapped file counts as resident for as long as any tensor of it lives. Plain reads of one tensor at a time keep the
peak of loading at one layer. Dtype codes are those of the safetensors format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..registry.errors import UnreadableCheckpointError
from ..registry.headers import TensorEntry, unreadable
from ..registry.scheme import TensorInfo

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def read_tensor(entry: TensorInfo) -> torch.Tensor:
    """Read one entry of a safetensors file into a tensor of its own (CPU, the file's dtype and shape).

    Raises ``UnreadableCheckpointError`` when the file is gone or shorter than its header says, or its dtype is unknown.
    """
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise UnreadableCheckpointError(
            f"tensor {entry.name} has a dtype this version of torch has no name for",
            field=entry.name,
            observed=entry.dtype,
            required=sorted(DTYPES),
            code="QD611",
        )
    flat = _read_into(entry) if isinstance(entry, TensorEntry) and entry.local else _from_bytes(entry)
    return flat.view(dtype).reshape(entry.shape)


def _read_into(entry: TensorEntry) -> torch.Tensor:
    """Straight into the tensor's own memory: going through ``bytes`` would hold every tensor twice."""
    flat = torch.empty(entry.nbytes, dtype=torch.uint8, device="cpu")
    try:
        with open(entry.file, "rb", buffering=0) as stream:
            stream.seek(entry.start)
            target, done = memoryview(flat.numpy()), 0  # type: ignore[arg-type]
            while done < entry.nbytes and (count := stream.readinto(target[done:])):
                done += count
    except OSError as error:
        raise unreadable(entry.file, error) from None
    if done < entry.nbytes:
        raise UnreadableCheckpointError(
            f"{entry.file} ends inside tensor {entry.name}", field=entry.name, observed=f"{done} bytes",
            required=f"{entry.nbytes} bytes", remedy="download or write the file again", code="QD607",
        )  # fmt: skip
    return flat


def _from_bytes(entry: TensorInfo) -> torch.Tensor:
    raw = entry.read()
    if raw is None:
        raise UnreadableCheckpointError(
            f"tensor {entry.name} is known by its header only", field=entry.name, observed="a header",
            required="its bytes, in a file that is here",
            remedy="download the checkpoint and give its folder", code="QD610",
        )  # fmt: skip
    # torch.frombuffer refuses an empty buffer, and warns over one that may not be written to
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class InMemory:
    """A tensor at hand, described like an entry of a safetensors header."""

    name: str
    tensor: torch.Tensor

    @property
    def dtype(self) -> str:
        return CODES.get(self.tensor.dtype, str(self.tensor.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def read(self) -> bytes:
        flat = self.tensor.detach().cpu().contiguous().reshape(-1)
        return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def described(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Local name to :class:`InMemory`, for a scheme's header checks."""
    return {name: InMemory(name, tensor) for name, tensor in tensors.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``"bfloat16"``, the form in which kernel specs carry it."""
    return str(dtype).removeprefix("torch.")


def resident_bytes(model: torch.nn.Module) -> int:
    """Bytes of the distinct storages behind a model's parameters and buffers."""
    storages = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            storages[(tensor.device, storage.data_ptr())] = storage.nbytes()
    return sum(storages.values())
