#!/usr/bin/env bash
# Every Triton kernel on the GPU that is here: right against float64, then timed. One command, under 8 minutes on an
# H200; needs PyTorch and Triton in the Python that PYTHON names (python3), and no network. JSON goes to $1.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The repository root is itself the package.
ln -s "$root" "$scratch/quantdispatch"
cd "$root"
export PYTHONPATH="$scratch:$root" PYTHONUNBUFFERED=1 QUANTDISPATCH_CACHE="${QUANTDISPATCH_CACHE:-$scratch/cache}"
"${PYTHON:-python3}" -m benchmarks.gpu_check --json "${1:-gpu_check.json}" "${@:2}"
