"""JSON files as they come: each flaw has its own one-line error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quantdispatch.registry import config_json
from quantdispatch.registry.config import parse_config, parse_json_file
from quantdispatch.registry.errors import ConfigError

BLOCK = '{"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}}'


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"{", "is not JSON: .* at line 1, column 2"),
        (b'{"a": 1,}', "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b"hello", "is not JSON"),
        (b"[1]", "holds no JSON object .*observed list"),
        (b"null", "holds no JSON object"),
        (b'"x"', "holds no JSON object"),
        (b'{"a": "\xff"}', "is not UTF-8: byte 7 is 0xff"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
        (b'{"a": ' * 100_000, "is nested too deeply|is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number that cannot be read"),
        (b"\x00" * 64, "is not JSON"),
    ],
)
def test_flawed_files(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"^config.json {says}|^config.json holds a {says}") as caught:
        parse_json_file(path)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing.json cannot be read: No such file"):
        parse_json_file(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="is not a regular file"):
        parse_json_file(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_json_file(str(tmp_path / "a\0b"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes exist on POSIX only")
def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="is not a regular file"):
        parse_json_file(tmp_path / "config.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(BLOCK)
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        parse_json_file(path)


def test_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(BLOCK)
    monkeypatch.setattr(config_json, "MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="is too long"):
        parse_json_file(path)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
def test_good_files(tmp_path: Path, prefix: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(prefix + BLOCK.encode())
    assert parse_json_file(path) == json.loads(BLOCK)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f'{{"quantization_config": {BLOCK}, "quantization_config": {BLOCK}}}', "quantization_config"),
        (f'{{"quantization_config": {BLOCK[:-1]}, "ignore": [], "ignore": ["x"]}}}}', "quantization_config.ignore"),
        (BLOCK.replace("]}", '], "W4A16": []}'), "config_groups.W4A16"),
    ],
)
def test_a_key_given_twice_in_the_block_is_refused(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="given more than once") as caught:
        parse_config(parse_json_file(path))
    assert caught.value.field == field


def test_a_key_given_twice_elsewhere_is_read_as_everyone_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"dtype": "a", "dtype": "b", "quantization_config": {BLOCK}}}')
    raw = parse_json_file(path)
    assert raw["dtype"] == "b" and parse_config(raw).problems == ()
