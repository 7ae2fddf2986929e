#!/usr/bin/env bash
# Collects the wheels that a leased GPU machine lacks (Python 3.12, with JAX, torch and
# pytest, without a package index) in .whl, and prints the command to run there.
# usage, in the project's root: bash tests/benchmarks/gpu_pack.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
grep -qx /.whl/ .git/info/exclude 2>/dev/null || echo /.whl/ >> "$(git rev-parse --git-path info/exclude)"
rm -rf .whl
platforms=()
for name in manylinux_2_{28,27,24,17} manylinux{2014,1}; do
  platforms+=(--platform "${name}_x86_64")
done
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
  --implementation cp "${platforms[@]}" -d .whl \
  keras==3.15.1 namex optree deflate pytest pluggy hypothesis cloudpickle nvidia-ml-py
python3 -m pip wheel -q --no-deps -w .whl .
du -sh .whl
cat <<TEXT
carry: [".whl"]   timeout_s: 540   command:
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl && export PYTHONPATH=/tmp/site PYTHONUNBUFFERED=1 || exit; python3 -m tests.benchmarks.gpu_day --backend jax --backend torch --minutes 7.5 -o \$OUT/gpu_day.jsonl --commit $(git rev-parse --short HEAD)
TEXT
