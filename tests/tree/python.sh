#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Python package, from the tree, on the library of this build: python/tests with the available
# packages, numpy alone or torch as well.  A wheel is built and tested if pip can build one without
# a network.
. tests/support/harness.sh
python=${PYTHON:-python3}
library=$LOCI_BUILD/libloci.so.0
left_out() { printf "python: left out: %s\n0 passed, 0 failed\n" "$*"; exit 0; }
[ -z "${LOCI_PYTHON_ELSEWHERE:-}" ] || left_out "its wheel is tested by itself"
[ -z "${LOCI_SANITIZE:-}" ] && [ -e "$library" ] || left_out "this build has no shared library, or one for sanitizers"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || left_out "there is no Python 3.10"
"$python" -c 'import numpy, venv' 2>/dev/null || left_out "this Python has no numpy, or no venv (Debian: python3-numpy python3-venv)"

export LOCI_LIBRARY=$library PYTHONDONTWRITEBYTECODE=1
tests() { (cd python && "$python" -W error::SyntaxWarning -m tests); }
check "python/tests" tests
for file in python/examples/*.py; do
    name=$(basename "$file" .py)
    case $name in
    train | generate | speculative | from_flash_attn) "$python" -c 'import torch' 2>/dev/null || continue ;;
    huggingface | distributed | speech) "$python" -c 'import torch, transformers' 2>/dev/null || continue ;;
    esac
    check "python/examples/$name.py" env PYTHONPATH=python "$python" "$file"
done
if "$python" -c 'import torch, transformers' 2>/dev/null; then
    # Whatever the name of this machine, its processes use the loopback.
    [ ! -e /sys/class/net/lo ] || export GLOO_SOCKET_IFNAME=lo
    trained() { PYTHONPATH=python OMP_NUM_THREADS=1 "$python" "$@" python/examples/distributed.py 2>"$work/err"; }
    alike() {
        trained >"$work/alone" && trained -m torch.distributed.run --standalone --nproc-per-node 2 >"$work/out" &&
            grep -Eq "received [0-9.]*[1-9]" "$work/err" && diff "$work/alone" "$work/out"
    }
    check "python/examples/distributed.py over two processes, with the losses of one" alike
    check "python/bench/encoders.py --short" env PYTHONPATH=python "$python" python/bench/encoders.py --short --threads 1
    check "python/bench/latent.py --short" env PYTHONPATH=python "$python" python/bench/latent.py --short
    check "the code in its documentation" env PYTHONPATH=python "$python" scripts/run-blocks "$python" README.md docs/*.md
fi
if "$python" -c 'import scikit_build_core' 2>/dev/null; then
    wheel() {
        "$python" -m pip wheel . --no-build-isolation --no-deps --wheel-dir "$work" >"$work/log" 2>&1 || { tail -n 20 "$work/log" && false; }
    }
    alone() {
        "$python" -m venv --system-site-packages "$work/venv" && "$work/venv/bin/pip" install --no-index --no-deps "$work"/loci_attention-*.whl >"$work/log" 2>&1 &&
            (cd "$work" && env -u LOCI_LIBRARY "$work/venv/bin/python" -c 'import loci, numpy as n; x = n.ones((1, 2, 3, 8), "f"); loci.attention(x, x, x, "alibi")')
    }
    check "a wheel is built" wheel
    check "and works from another folder" alone
    named() { (cd "$work" && env -u LOCI_LIBRARY -u LOCI "$work/venv/bin/$1" "${@:2}" >"$work/log" 2>&1); }
    check "its program is there" named loci show alibi
    check "and as a module" named python -m loci version
    reports() { named python -m loci && grep -q "^threads .* in a pool of loci; with torch, its own" "$work/log"; }
    check "which reports what is installed" reports
fi
harness_end
