"""Hub ids: config and headers only, from a server on this machine that stands in for the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny

from quantdispatch.registry.hub import is_hub_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"

# huggingface_hub reads its environment when it is imported, so each case asks from a process of its own.
ASK = """
import json, sys
from quantdispatch.registry.errors import QuantDispatchError
from quantdispatch.registry.hub import open_hub
out = []
for source in sys.argv[1:]:
    try:
        found = open_hub(source)
        tensors = {t.name: [t.dtype, list(t.shape), t.read() is None] for t in found.tensors.values()}
        fmt = found.config["quantization_config"]["format"]
        out.append({"tensors": tensors, "config": fmt, "shards": found.shards, "notes": found.notes})
    except QuantDispatchError as error:
        out.append({"type": type(error).__name__, "text": str(error), "exit": error.exit_code})
print(json.dumps(out))
"""


class Hub:
    """What the stand-in serves and what it was asked: (method, path, bytes sent)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[str, str, int]] = []
        self.ranges = True
        self.url = ""

    def files(self, repo: str) -> dict[str, Path]:
        folder = self.root / repo
        return {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()}


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if "gated/" in path:
                return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if "refusing/" in path:
                return self.answer(418, b"{}", {})
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                return self.api("/".join(parts[2:4]), parts[4:])
            repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
            self.file(repo, revision, name)

        def api(self, repo: str, rest: list[str]) -> None:
            files = hub.files(repo)
            if not files:
                return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if len(rest) > 1 and rest[1] not in ("main", "v2", COMMIT):
                return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            info = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files], "tags": []}
            self.answer(200, json.dumps(info).encode(), {})

        def file(self, repo: str, revision: str, name: str) -> None:
            files = hub.files(repo)
            if not files:
                return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            if revision not in ("main", "v2", COMMIT):
                return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            if name not in files:
                return self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            data, headers = files[name].read_bytes(), {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
            asked = self.headers.get("range", "")
            if hub.ranges and asked.startswith("bytes="):
                first, last = (int(n) for n in asked[6:].split("-"))
                part = data[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
                return self.answer(206, part, headers)
            self.answer(200, data, headers)

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            hub.asked.append((self.command, self.path, len(body)))
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                try:
                    self.wfile.write(body)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has what it wanted

        def log_message(self, *args: Any) -> None:
            """Silence."""

    return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path / "served")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()


def ask(hub: Hub, cache: Path, *sources: str, **environment: str) -> list[dict[str, Any]]:
    proxies = {f"{kind}_proxy" for kind in ("http", "https", "all")}
    left_out = {"hf_hub_offline", "transformers_offline", "hf_token", *proxies}
    env = {key: value for key, value in os.environ.items() if key.lower() not in left_out}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    env |= environment
    done = subprocess.run([sys.executable, "-c", ASK, *sources], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def serve(hub: Hub, repo: str, *, large: int = 0) -> Path:
    tensors = {**tiny.int4("m.x"), **({"big": ("I8", [large])} if large else {})}
    return Path(tiny.folder(hub.root / repo, tiny.config(), tensors))


@pytest.mark.parametrize("ranges", [True, False])
def test_headers_without_the_weights(hub: Hub, tmp_path: Path, ranges: bool) -> None:
    hub.ranges = ranges
    serve(hub, "owner/single", large=30_000_000)
    many = {f"layer.{i}.{'x' * 80}": ("I8", [1]) for i in range(2000)}  # a header longer than the first request
    tiny.sharded(hub.root / "owner/many", tiny.config(), {"a.safetensors": many, "b.safetensors": tiny.int4("m.x")})
    single, sharded, revision = ask(hub, tmp_path / "cache", "owner/single", "owner/many", "owner/single@v2")
    assert single["tensors"]["m.x.weight_packed"] == ["I32", [64, 8], True] and single["config"] == "pack-quantized"
    assert len(sharded["tensors"]) == 2003 and sharded["shards"] == ["a.safetensors", "b.safetensors"]
    assert revision["tensors"] == single["tensors"]
    assert any("/resolve/v2/" in path for _, path, _ in hub.asked)
    if ranges:
        assert sum(sent for method, _, sent in hub.asked if method == "GET") < 3_000_000


def test_failures_are_of_ours(hub: Hub, tmp_path: Path) -> None:
    serve(hub, "owner/good")
    (serve(hub, "owner/no-config") / "config.json").unlink()
    bin_only = serve(hub, "owner/pickled")
    (bin_only / "model.safetensors").rename(bin_only / "pytorch_model.bin")
    cut = serve(hub, "owner/cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-5])
    shards = tiny.sharded(hub.root / "owner/shardless", tiny.config(), {"a.safetensors": tiny.int4("m.x")})
    (shards / "a.safetensors").unlink()
    expected = {
        "owner/missing": ("UnreadableCheckpointError", "neither a file or folder here nor a model on the hub"),
        "owner/good@nowhere": ("UnreadableCheckpointError", "no such revision"),
        "gated/model": ("UnreadableCheckpointError", "gated"),
        "refusing/model": ("UnreadableCheckpointError", "refused the request with status 418"),
        "owner/no-config": ("ConfigError", "no config.json on the hub"),
        "owner/pickled": ("UnreadableCheckpointError", "pytorch_model.bin"),
        "owner/cut": ("UnreadableCheckpointError", "truncated"),
        "owner/shardless": ("UnreadableCheckpointError", "names a shard that is not there: a.safetensors"),
    }
    for (source, (kind, words)), got in zip(expected.items(), ask(hub, tmp_path / "cache", *expected), strict=True):
        assert got.get("type") == kind and words in got["text"] and got["exit"] == 2, (source, got)
        assert "\n" not in got["text"]


def test_offline(hub: Hub, tmp_path: Path) -> None:
    serve(hub, "owner/good")
    (nothing,) = ask(hub, tmp_path / "cache", "owner/good", HF_HUB_OFFLINE="1")
    assert (
        nothing["type"] == "UnreadableCheckpointError" and "HF_HUB_OFFLINE" in nothing["text"] and nothing["exit"] == 2
    )
    assert not hub.asked
    ask(hub, tmp_path / "cache", "owner/good")
    before = len(hub.asked)
    (config_only,) = ask(hub, tmp_path / "cache", "owner/good", HF_HUB_OFFLINE="1")
    assert len(hub.asked) == before
    assert config_only["tensors"] == {} and "shapes are unknown" in config_only["notes"][0]
    snapshot = next((tmp_path / "cache" / "hub").glob("models--owner--good/snapshots/*"))
    tiny.save(snapshot / "model.safetensors", tiny.int4("m.x"))
    (cached,) = ask(hub, tmp_path / "cache", "owner/good", HF_HUB_OFFLINE="1")
    assert cached["tensors"]["m.x.weight_packed"] == ["I32", [64, 8], False]


def test_nobody_answers(hub: Hub, tmp_path: Path) -> None:
    (refused,) = ask(hub, tmp_path / "cache", "owner/good", HF_ENDPOINT="http://127.0.0.1:9")
    assert refused["type"] == "UnreadableCheckpointError" and "cannot be reached" in refused["text"]
    assert refused["exit"] == 2 and "\n" not in refused["text"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/name", True),
        ("owner/name@v1.0", True),
        ("Qwen/Qwen2.5-0.5B", True),
        ("name", False),
        ("./owner/name", False),
        ("/owner/name", False),
        ("owner/name/more", False),
        ("../name", False),
        ("owner/", False),
        ("owner\\name", False),
    ],
)
def test_what_looks_like_an_id(source: str, expected: bool) -> None:
    assert is_hub_id(source) is expected


def test_a_folder_that_exists_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id("owner/name") and is_hub_id("owner/other")
