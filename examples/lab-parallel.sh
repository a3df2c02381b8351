#!/bin/bash
# SPDX-License-Identifier: MIT
# One preset on several machines by GNU parallel:  examples/lab-parallel.sh overnight /shared/lab host1 host2 host3
# Every machine sees the folder and has loci in its PATH; the same command goes on where it was stopped.
set -euo pipefail
preset=$1 dir=$2
shift 2
hosts=$(IFS=,; echo "$*")
parallel --jobs 1 --sshlogin "$hosts" --line-buffer loci lab run --preset "$preset" -o "$dir" --shard "{}/$#" ::: $(seq 0 $(($# - 1)))
loci lab report "$dir" -o report.html
