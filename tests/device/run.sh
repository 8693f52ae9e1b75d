#!/usr/bin/env bash
# Checks libvllm on a real CUDA device in under four minutes: tests/device/run.sh [OUT [--dry]]
#
# PYTHON (default python3) needs torch with CUDA, cuda-bindings, tokenizers and numpy. The package is built from this
# tree, without its dependencies, where a compiler and cffi are there; else it is run from the tree.
# OUT/results.json has the figures for docs/gpu.md; OUT/golden.json becomes tests/device/golden.json, to which the
# fake runtime is then held.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${1:-/tmp/libvllm-device}
shift || true
mkdir -p "$out"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
limit=235
if [[ " $* " == *" --dry "* ]]; then
  # The imagined device computes on a CPU that others may be using.
  limit=3600
  set -- "$@" --seconds 3500
  export PYTHONPATH="$PWD"
elif "$python" -m pip install --quiet --no-deps --no-build-isolation --target "$site" . 2>"$out/build.log"; then
  echo "built"
  export PYTHONPATH="$site:$PWD"
else
  echo "not built (see $out/build.log): running from the tree"
  export PYTHONPATH="$PWD"
fi
export PYTHONUNBUFFERED=1
timeout "$limit" "$python" -m tests.device --out "$out" "$@"
