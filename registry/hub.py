"""A hub id as a source: its config.json and the headers of its safetensors files, never the weights.

Everything goes through huggingface_hub (imported only here, only when an id is given), so its settings count:
``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, ``HF_HOME``, the stored token. Headers come by HTTP range requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from .checkpoint import (  # fmt: skip
    CONFIG,
    INDEX,
    SINGLE,
    Checkpoint,
    assemble,
    has_weights,
    missing_shard,
    no_weights,
    open_checkpoint,
    parse_index,
    parse_json,
    read_config,
)
from .errors import ConfigError, QuantDispatchError, UnreadableCheckpointError
from .headers import header_length, parse_header
from .stored_tensors import Header
from .tensor_table import TensorTable

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w./-]+)?")
#: most headers are shorter, so that one request a file is enough (what huggingface_hub itself asks for)
_FIRST_BYTES = 100_000
_WORKERS = 8


def is_hub_id(source: str) -> bool:
    """``owner/name`` or ``owner/name@revision``, unless a file or folder of that name exists."""
    return bool(_ID.fullmatch(source)) and not os.path.exists(source)


def open_hub(source: str) -> Checkpoint:
    """config.json and headers of a hub id. Its tensors have no bytes at hand: ``read()`` gives ``None``.

    Raises ``UnreadableCheckpointError`` (exit code 2) when the hub cannot be reached, the id, revision or a file is not
    there, or access is refused; ``ConfigError`` when there is no config.json.
    """
    repo, _, revision = source.partition("@")
    with _failures(source):
        return _open(source, repo, revision or None)


def _open(source: str, repo: str, revision: str | None) -> Checkpoint:
    from huggingface_hub import constants, hf_hub_download

    # Asked first: unlike a download this gives up at once when nobody answers.
    files = [] if constants.is_offline_mode() else _files(repo, revision)
    config_path = Path(hf_hub_download(repo, CONFIG, revision=revision))
    config = read_config(config_path)
    if constants.is_offline_mode():
        # What an earlier download left in the cache is a checkpoint folder like any other.
        if has_weights(config_path.parent):
            return open_checkpoint(config_path.parent)
        note = "offline: the weights are not in the cache, shapes are unknown"
        return Checkpoint(source, config, TensorTable(), (), (note,))
    if SINGLE in files:
        return assemble(source, config, _headers(repo, revision, (SINGLE,)), (SINGLE,))
    if INDEX in files:
        index = parse_json(Path(hf_hub_download(repo, INDEX, revision=revision)).read_bytes(), f"{source}/{INDEX}")
        weight_map = parse_index(index, f"{source}/{INDEX}")
        shards = tuple(sorted(set(weight_map.values())))
        for shard in shards:
            if shard not in files:
                raise missing_shard(source, shard, weight_map)
        return assemble(source, config, _headers(repo, revision, shards), shards, weight_map)
    shards = tuple(name for name in files if name.endswith(".safetensors") and "/" not in name)
    if not shards:
        raise no_weights(source, files)
    return assemble(source, config, _headers(repo, revision, shards), shards)


def _files(repo: str, revision: str | None) -> list[str]:
    from huggingface_hub import HfApi

    siblings = HfApi().model_info(repo, revision=revision, timeout=10).siblings or ()
    return sorted(file.rfilename for file in siblings)


def _headers(repo: str, revision: str | None, shards: Iterable[str]) -> list[Header]:
    from huggingface_hub import hf_hub_url

    urls = [hf_hub_url(repo, shard, revision=revision) for shard in shards]
    from concurrent.futures import ThreadPoolExecutor  # brings in logging; most sources are no hub ids

    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(_remote_header, urls))


def _remote_header(url: str) -> Header:
    data, size = _fetch(url, 0, _FIRST_BYTES)
    length = header_length(data[:8], size, url)
    text = data[8 : 8 + length]
    if len(text) < length:
        rest, _ = _fetch(url, 8 + len(text), length - len(text))
        text += rest
    if len(text) < length:
        raise UnreadableCheckpointError(
            f"{url} ends inside its header", field=url, observed=f"{len(text)} bytes", required=f"{length} bytes",
            remedy="try again, or download the files", code="QD609",
        )  # fmt: skip
    return parse_header(text, size, url, local=False)


def _fetch(url: str, start: int, count: int) -> tuple[bytes, int | None]:
    """``count`` bytes from ``start`` (fewer at the end of the file) and the size of the whole, if the server tells."""
    utils = _hub_utils()
    # An encoding would make offsets count compressed bytes.
    headers = {
        **utils.build_hf_headers(),
        "range": f"bytes={start}-{start + count - 1}",
        "accept-encoding": "identity",
    }
    with utils.get_session().stream("GET", url, headers=headers, timeout=30) as response:
        utils.hf_raise_for_status(response)
        partial = response.status_code == 206
        skip = 0 if partial else start  # a server that ignores ranges sends the file from its first byte
        data = bytearray()
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) >= skip + count:
                break
        return bytes(data[skip : skip + count]), _total_size(response.headers, partial)


def _total_size(headers: Any, partial: bool) -> int | None:
    text = headers.get("content-range", "").rpartition("/")[2] if partial else headers.get("content-length", "")
    return int(text) if text.isdigit() else None


@contextmanager
def _failures(source: str) -> Iterator[None]:
    """Everything that huggingface_hub raises, as an error of ours that says what to do."""
    from huggingface_hub import errors as hub

    try:
        yield
    except QuantDispatchError:
        raise
    except hub.GatedRepoError:
        _fail(
            source,
            f"{source} is gated: access has to be granted on the hub",
            "ask for access there and log in with `hf auth login`",
        )
    except hub.RevisionNotFoundError:
        _fail(source, f"{source}: there is no such revision on the hub", "name a branch, tag or commit after the @")
    except hub.RepositoryNotFoundError:
        _fail(
            source,
            f"{source} is neither a file or folder here nor a model on the hub",
            "check the spelling; for a private model log in with `hf auth login`",
        )
    except (hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError) as error:
        _offline(source, error)
    except hub.EntryNotFoundError:
        raise ConfigError(
            f"{source} has no {CONFIG} on the hub", field=CONFIG, observed=source, required=CONFIG,
            remedy="name a model whose config.json is there", code="QD501",
        ) from None  # fmt: skip
    except hub.HFValidationError as error:
        _fail(source, f"{source} is not a valid hub id: {error}", "give owner/name, a folder or a config.json")
    except hub.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        _fail(source, f"{source}: the hub refused the request with status {status}", "try again later")
    except _transport_errors() as error:
        _fail(
            source,
            f"{source}: the hub cannot be reached: {error}",
            "check the connection or HF_ENDPOINT, or download the files",
        )


def _offline(source: str, error: Exception) -> NoReturn:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        _fail(
            source,
            f"{source} is neither a file or folder here nor in the hub cache, and HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE or download the model first",
        )
    reason = error.__cause__ or error
    _fail(
        source,
        f"{source}: the hub cannot be reached: {reason}",
        "check the connection or HF_ENDPOINT, or download the files",
    )


def _transport_errors() -> tuple[type[BaseException], ...]:
    """OSError, and what the HTTP library of the installed huggingface_hub raises (it has changed it twice)."""
    kinds: list[type[BaseException]] = [OSError]
    for base in type(_hub_utils().get_session()).__mro__:
        module = __import__(base.__module__.partition(".")[0])
        kind: Callable[..., Any] | None = getattr(module, "HTTPError", None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            kinds.append(kind)
    return tuple(kinds)


def _hub_utils() -> Any:
    """What huggingface_hub has its own requests made with; not exported in a way that type checkers accept."""
    return import_module("huggingface_hub.utils")


def _fail(source: str, message: str, remedy: str) -> NoReturn:
    raise UnreadableCheckpointError(
        message, field="source", observed=source, required="a model that can be had from the hub", remedy=remedy,
        code="QD609",
    ) from None  # fmt: skip
