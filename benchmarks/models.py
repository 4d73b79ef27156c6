"""The checkpoints that are measured: SmolLM2-135M-Instruct, quantized by compressed-tensors (see examples/)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from demo_models import smollm2_base, smollm2_variant  # noqa: E402

#: what the vertical slice has to run, by the name of the demo variant
WEIGHT_ONLY = ("w4a16-asym", "w4a16-sym")
WITH_INPUTS = ("w8a8-int8", "fp8-dynamic")

#: 200 tokens of it are scored; plain prose, so that a language model of any size has something to say about it
TEXT = """The lighthouse keeper climbed the stairs every evening before the sun touched the water. There were two
hundred and twelve steps, and he had counted them so often that the numbers came by themselves, like the words
of an old song. At the top he cleaned the glass, filled the lamp with oil and wound the heavy clock that
turned the light. From up there he could see the fishing boats coming home, one behind the other, and behind
them the long grey line where the sea became the sky. In winter the storms shook the tower, and the wind made
a sound in the chimney that frightened his visitors. He told them that a house which sings is a house which
stands. In summer children came from the village with bread, cheese and questions. How far does the light go?
Who looks at it? What happens if you fall asleep? He answered each of them slowly and seriously, because he
believed that a good question deserves as much care as a lamp. When he grew too old for the stairs, the
village built a machine that did his work, and it did the work well, but nobody ever asked it a question."""


def folder(name: str) -> Path:
    """The checkpoint ``name`` (``"bf16"`` is the unquantized one), made on first use and cached."""
    path: Path = smollm2_base() if name == "bf16" else smollm2_variant(name)
    return path


def stored_bytes(path: Path) -> int:
    """Bytes of the safetensors files."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
