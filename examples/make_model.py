"""Make compressed-tensors checkpoints of SmolLM2-135M-Instruct (or of a tiny random model) without a network.

python examples/make_model.py w4a16-asym             the demo model, under .cache/models/
python examples/make_model.py --list                 every variant
python examples/make_model.py --tiny /tmp/t fp8-block    two random layers
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from demo_models import VARIANTS, MissingSource, smollm2_variant, tiny_model
from demo_models.cache import DEFAULT_CACHE
from demo_models.smollm2 import describe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "variants", nargs="*", metavar="VARIANT", help="variants to make; bf16 is the unquantized model"
    )
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that holds the checkpoints")
    parser.add_argument(
        "--tiny", type=Path, metavar="FOLDER", help="write tiny random models below this folder instead"
    )
    parser.add_argument("--list", action="store_true", help="list the variants and stop")
    options = parser.parse_args()
    if options.list:
        print("\n".join(["bf16", *VARIANTS]))
        return 0
    unknown = [name for name in options.variants if name != "bf16" and name not in VARIANTS]
    if unknown or not options.variants:
        parser.error(
            f"no variant {', '.join(unknown)}; --list shows all" if unknown else "name a variant; --list shows all"
        )
    for name in options.variants:
        start = time.perf_counter()
        try:
            folder = tiny_model(name, options.tiny / name) if options.tiny else smollm2_variant(name, options.cache)
        except MissingSource as error:
            print(f"cannot make the model: {error}", file=sys.stderr)
            return 1
        print(f"{describe(folder)} ({time.perf_counter() - start:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
