#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/performance prints the figures of `loci bench`, and none if no round counts.  A program
# with fixed answers replaces loci.
. tests/support/harness.sh
cat >"$work/loci" <<'END'
#!/bin/sh
case "$*" in
info*) echo '{"version":"1","cpu":"A Processor","cpus":3,"isas":["scalar","avx2"],"isa":"avx2","fast":false,"compiler":"cc 1.2"}' ;;
list*) printf '{"name":"%s","example":"%s"}\n' nope nope t5 t5:bidirectional=0 sba sba ;;
*--len\ 64*) counted=9 ;;
*rotate*) exit 2 ;;
*--pass\ backward*--threads\ 2*) counted=0 ;;
*--threads\ 2*) counted=4 ;;
*--lasting*--pass\ backward*) counted=0 ;;
bench*) counted=5 ;;
esac
case "$counted" in
'') ;;
0) echo '{"percent_of_peak":null,"percent_of_stream":null,"ratio_to_nope":null,"counted":0,"made":90,"best_probe":77.25}' ;;
*) echo '{"percent_of_peak":81.6,"percent_of_stream":97.4,"ratio_to_nope":1.0256,"counted":'$counted',"made":90,"best_probe":77.25}' ;;
esac
END
chmod +x "$work/loci"
has() { grep -Fxq -- "$1" "$work/out"; }

check "it runs" bash -c 'scripts/performance "$0/loci" >"$0/out"' "$work"
check "the processor" grep -Eq '^Processor: A Processor( \(family [0-9]+, model [0-9]+\))?, 3 cores online, avx2, cc 1.2$' "$work/out"
check "its peak" has 'Peak of one core, avx2: 77.2 GFLOP/s'
check "an instruction set" has '| nope, avx2, D 64 / 128 | A Processor |'
check "scalar is not measured" bash -c '! grep -q scalar "$0"' "$work/out"
check "enough rounds" has '| forward, L 4096, 1 thread | 82 / 82 % |'
check "few rounds" has '| forward, L 4096, 2 threads | 82? / 82? % |'
check "none" has '| backward, L 4096, 2 threads | busy / busy % |'
check "an encoding" has '| `t5:bidirectional=0` | 1.03 | 1.03 | 1.03 | 1.03 |'
check "one that is measured twice" has '| `sba`, `--lasting` | 1.03 | 1.03 | busy | busy |'
check "nope is compared with nothing" bash -c '! grep -Fq "\`nope\`" "$0"' "$work/out"
check "no dot products" bash -c '! grep -q bf16.dot "$0"' "$work/out"
check "decode" has '| bf16, 8 heads of 64, 2 of keys and values | 97 / 97? % |'
check "latent attention" has '| f16, 128 heads | 82 % | 82? % |'
check "what fails" has '| `rope:pairing=half` | failed / failed % |'
check "without a program" bash -c '! scripts/performance 2>"$0"; grep -q usage: "$0"' "$work/err"
harness_end
