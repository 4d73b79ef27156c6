"""``quantdispatch.load``: a transformers model whose quantized layers stay packed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..registry.checkpoint import INDEX, SINGLE
from ..registry.config_locate import find_quantization_config, no_config_error
from ..registry.errors import CheckpointError, ConfigError, UnreadableCheckpointError
from ..registry.hub import is_hub_id
from ..registry.plan import Plan, plan
from .binding import device_name
from .progress import on_terminal
from .tensors import dtype_name

#: what a model needs of a hub repository
_WANTED = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")

# While transformers loads, it replaces functions of its own (that tie weights, for one) for all threads. A second load
# that begins meanwhile misses them, and puts the wrong ones back.
_one_at_a_time = threading.RLock()


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    backend: str | None = None,
    allow: str | Iterable[str] = (),
) -> Any:
    """Load a compressed-tensors checkpoint as a transformers model in eval mode, its weights packed.

    ``path``: checkpoint folder or hub id. ``dtype``: of activations and of everything unquantized. ``backend``: use
    only this backend's kernels. ``allow``: what kernels may compute otherwise than schemes say, ``"int8-activations"``
    for quantizing 16-bit inputs to int8 where that is faster; nothing by default. The plan is kept as
    ``model.quantdispatch_plan``. Needs the extra ``transformers``.

    Raises ``PlanError`` (or the single error in it) before a model is built when a layer does not resolve or stored
    tensors contradict the config; ``CheckpointError`` for missing, left-over or unusable tensors; ``ConfigError`` for
    an architecture that the installed transformers does not have; ``NoKernelFound`` when no kernel works on this
    machine.
    """
    _require_transformers()
    target = torch_device(device)
    folder = local_folder(path)
    where, name = device_name(target), dtype_name(dtype)
    resolved = plan(folder, device=where, dtype=name, backend=backend, allow=allow, strict=True)
    require_tensors(resolved, folder)
    _require_known_files(folder)
    with _one_at_a_time, _quiet():
        return _build(folder, resolved, target, dtype, backend)


def torch_device(device: str | torch.device) -> torch.device:
    """Raises ``ConfigError`` for what torch knows no device by."""
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"torch has no device {device!r}: {error}",
            field="device",
            observed=device,
            required="cpu, cuda or cuda:N",
            code="QD521",
        ) from None


def require_tensors(resolved: Plan, folder: str) -> None:
    """Raises ``UnreadableCheckpointError`` for a plan made of a config alone, which can be explained but not run."""
    if resolved.checkpoint is None or not resolved.checkpoint.tensors:
        raise UnreadableCheckpointError(
            f"there are no weights in {folder}", field=SINGLE, observed="a config alone", required=SINGLE,
            remedy="give the checkpoint's folder, with its weights", code="QD602",
        )  # fmt: skip


def _require_known_files(folder: str) -> None:
    """Raises ``UnreadableCheckpointError`` for files that a plan finds by their suffix and transformers does not."""
    if not any(os.path.exists(os.path.join(folder, name)) for name in (SINGLE, INDEX)):
        raise UnreadableCheckpointError(
            f"{folder} has safetensors files, but neither {SINGLE} nor {INDEX}, by which transformers finds them",
            field=INDEX,
            observed=", ".join(sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))),
            required=f"{SINGLE} or {INDEX}",
            remedy=f"rename a single file to {SINGLE}, or download or write the index of several",
            code="QD603",
        )


def local_folder(path: str | os.PathLike[str]) -> str:
    """A folder as it is, or the local copy of a hub id (downloaded if need be)."""
    source = os.fspath(path)
    if not is_hub_id(source):
        return source
    from huggingface_hub import snapshot_download

    repo, _, revision = source.partition("@")
    try:
        return str(snapshot_download(repo, revision=revision or None, allow_patterns=list(_WANTED)))
    except (OSError, ValueError) as error:
        # huggingface_hub's own errors derive from these
        reason = " ".join(str(error).split())
        raise UnreadableCheckpointError(
            f"{source} is no folder, and cannot be had from the hub: {reason[:200]}",
            field="path",
            observed=source,
            required="a model that can be had from the hub",
            remedy="check the name, the connection and the access rights",
            code="QD609",
        ) from error


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "loading a model needs transformers, which is not installed",
            field="transformers",
            observed="not installed",
            required="transformers",
            remedy="pip install 'quantdispatch[transformers]'",
            code="QD530",
        ) from error


def _build(folder: str, resolved: Plan, device: torch.device, dtype: torch.dtype, backend: str | None) -> Any:
    from .transformers.config import PRIVATE_METHOD, Prepared
    from .transformers.switch import register_private

    register_private()
    config, architecture = _architecture(folder, _raw(resolved))
    block = _raw_block(resolved)
    foreign = block.get("quant_method") if resolved.config.translated_by is not None else None
    prepared = Prepared(resolved, backend, on_terminal(), foreign)
    config.quantization_config = {**block, "quant_method": PRIVATE_METHOD, "prepared": prepared}
    model, report = architecture.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        device_map=None if device.type == "cpu" else device,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    _check_report(report, architecture.__name__)
    return model


def _architecture(folder: str, raw: Mapping[str, Any]) -> tuple[Any, Any]:
    """The config object and the model class that config.json (``raw``) names."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a wrong value of any key fails in the class of its model, each in its own way
        unknown = isinstance(error, (ValueError, KeyError, TypeError))
        reason, kind = " ".join(str(error).split())[:300], raw.get("model_type", "no model_type")
        raise ConfigError(
            f"transformers {transformers.__version__} cannot read the model's config: {reason}",
            field="model_type" if unknown else "config.json",
            observed=kind if unknown else type(error).__name__,
            required="a model that it has" if unknown else f"a config of a {kind}",
            remedy="install a version of transformers that knows this model" if unknown else "correct config.json",
            code="QD531",
        ) from error
    names = getattr(config, "architectures", None) or []
    for name in names:
        if hasattr(transformers, name):
            return config, getattr(transformers, name)
    raise ConfigError(
        f"transformers {transformers.__version__} has no such architecture", field="architectures",
        observed=", ".join(names) or "none", required="a class that it has, such as LlamaForCausalLM",
        remedy="install a version of transformers that has it", code="QD531",
    )  # fmt: skip


def _raw_block(resolved: Plan) -> Mapping[str, Any]:
    """The quantization block as it stands in config.json, which is how it is saved again: a plugin that translates a
    foreign one reads it anew."""
    found = find_quantization_config(_raw(resolved))
    if found is None:
        raise no_config_error()
    return found[0]


def _raw(resolved: Plan) -> Mapping[str, Any]:
    assert resolved.checkpoint is not None
    return resolved.checkpoint.config


def _check_report(report: Mapping[str, Any], architecture: str) -> None:
    """What transformers found missing or left over. It warns about these and loads all the same; a checkpoint that we
    planned has to be complete."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{_listed(missing)} not in the checkpoint, and {architecture} needs {_them(missing)}",
            layer=_module(missing[0]), field=missing[0], observed="nothing", required=missing[0],
            remedy="the checkpoint is incomplete, or of another architecture", code="QD654",
        )  # fmt: skip
    unexpected = sorted(report["unexpected_keys"])
    if unexpected:
        raise CheckpointError(
            f"{_listed(unexpected)} in the checkpoint, and {architecture} has no use for {_them(unexpected)}",
            layer=_module(unexpected[0]), field=unexpected[0], observed=unexpected[0], required="nothing",
            remedy="the checkpoint is of another architecture, or has stray tensors", code="QD653",
        )  # fmt: skip
    for key, stored, wanted in sorted(report["mismatched_keys"]):
        raise CheckpointError(
            f"transformers could not load tensor {key}", layer=_module(key), field=key, observed=list(stored),
            required=list(wanted), code="QD677",
        )  # fmt: skip
    for message in report.get("error_msgs", ()):
        raise CheckpointError(
            f"transformers could not load the unquantized tensors: {message}", field="tensors", observed=str(message),
            required=f"tensors that {architecture} takes", code="QD677",
        )  # fmt: skip


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0] or tensor


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"tensor {shown} is" if len(names) == 1 else f"{len(names)} tensors ({shown}) are"


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' bars and reports off, ours say it: and everything as it was afterwards."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
