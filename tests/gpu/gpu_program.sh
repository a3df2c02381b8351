#!/bin/bash
# SPDX-License-Identifier: MIT
# Devices of the program: the list of `loci info`, and --device of run, check and bench.
. tests/support/harness.sh
case=tests/cases/nope-causal.safetensors

if "$LOCI" info | grep -q 'this build has no GPU support'; then
    none='this build has no GPU support; -DLOCI_GPU=ON builds it$'
    check "info says so in JSON" says '"devices":\[\],"no_devices":\["this build has no GPU support' info --json
    check "run" refused "run: --device: $none" run $case --device host
    check "check" refused "check: --device: $none" check --device host
    check "bench" refused "bench: --device: $none" bench nope --device host
    harness_end
    exit
fi

# ---- info.  Drivers can be switched off.
check "info has the host" says '^(devices|       )   host ' info
off() { LOCI_CUDA=none LOCI_OPENCL=none "$@"; }
check "a driver without a device says why" off says '^ +none +cuda: .*LOCI_CUDA=none' info
check "and so does the other one" off says '^ +none +opencl: .*LOCI_OPENCL=none' info
check "info --json" off says '"devices":\[\{"id":"host","name":"[^"]+","driver":"[^"]+","memory":0,"units":1\},.*\],"no_devices":\["cuda: [^"]+","opencl: [^"]+"\]\}$' info --json

# ---- run
check "run" says 'out .* ok$' run $case --device host
check "a bound can break" test "$("$LOCI" run $case --device host --tol 0,0 >/dev/null; echo $?)" -eq 1
check "no device" refused "run: --device: 'gpu' is no device" run $case --device gpu
check "no number of one" refused "run: --device: there is no host:9: host has 3 devices" run $case --device host:9
check "a driver that is switched off" off refused 'run: --device: cuda: .*LOCI_CUDA=none' run $case --device cuda:0
check "float64" refused "$case: dtype F64 does not run on a GPU" run $case --device host --dtype f64
check "linear attention" says 'out .* ok$' run tests/cases/rope-linear-attention.safetensors --device host
for option in '--engine reference' --fast '--isa scalar'; do
    check "no $option there" refused 'run: --device excludes --engine, --fast and --isa' run $case --device host $option
done

# ---- check
same='^[0-9]+ numbers of outputs and gradients are those of the CPU, in [0-9]+ problems$'
check "check" says "$same" check --device host
check "says what was compared" grep -Eq '^t5, 300 x 300, width 64/64, f32: [0-9]+ numbers$' "$work/out"
for problem in 'xpos, rotated keys, 130, width 48' 'learned, embedding, 100, width 128' \
    'nope, linear attention, 200 x 200, width 32/32' 'path, 100 x 100, width 32/32'; do
    check "with $problem" grep -Eq "^$problem, f32: [0-9]+ numbers$" "$work/out"
done
check "fits into 100 columns" test -z "$(grep -E '.{101}' "$work/out")"
# The same problems again, which take long with sanitizers.
if [ -z "${LOCI_SANITIZE:-}" ]; then
    check "check --json" says '^\{"device":"host:2",.*"same":true,"numbers":[1-9][0-9]+,"differ":0,"problems":[1-9][0-9]*,"wrong":0,"left_out":0\}$' check --device host:2 --json
fi
check "no file" refused 'check: --device needs no file' check file --device host
check "no other option" refused 'check: --device goes with --json alone, without --tol' check --device host --tol 1

# ---- bench
row='^alibi +33 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ KiB$'
small=(--len 33 --heads 1 --dim 16 --repeat 5 --device host)
check "bench" says "$row" bench alibi "${small[@]}"
check "its limits" grep -Eq '^probed: peak [0-9.]+ GFLOP/s of multiply-adds in f32, [0-9.]+ GB/s copied; medians of 5 rounds$' "$work/out"
check "bench fits into 100 columns" test -z "$(grep -E '.{101}' "$work/out")"
for pass in backward both; do
    check "bench --json, $pass" says '^\{"encoding":"t5","pass":"'$pass'",.*"q_len":33,"k_len":33,"dim":16,.*"device":"host",.*"seconds":[0-9.e-]+,"gflops":[0-9.e+-]+,"peak_gflops":[0-9.]+,"percent_of_peak":[0-9.e-]+,"gbytes_per_s":null,"peak_gbytes_per_s":[0-9.]+,"percent_of_stream":null,"ratio_to_nope":[0-9.]+,"workspace_bytes":[0-9]+,"rounds":5\}$' bench t5 "${small[@]}" --json --pass $pass
done
check "bench of all" says '^left out, as they do not run there: [a-z0-9]+(, [a-z0-9]+)*$' bench "${small[@]}"
check "has those that run" grep -Eq '^(t5|rope:pairing=half) ' "$work/out"
check "16 heads" says ' heads 16/16,' bench nope --len 5 --dim 4 --repeat 5 --device host
check "what does not run" refused 'bench: fox:stop=0.1: .* must be 0 on a GPU' bench fox:stop=0.1 "${small[@]}"
check "embeddings" refused 'bench: sinusoidal is added to embeddings' bench sinusoidal "${small[@]}"
check "decode" says '^rope:pairing=half +33 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ KiB$' bench rope:pairing=half "${small[@]}" --pass decode --kv-dtype f16
check "its columns" grep -Eq ' GB/s % of copy +x nope ' "$work/out"
check "rotate, without a ratio" says '^rope:pairing=half +33 +[0-9.]+ +[0-9.]+ +[0-9.]+ +- +[0-9.]+ KiB$' bench rope:pairing=half "${small[@]}" --pass rotate
check "prefill-chunk" says ', prefill-chunk of 5 rows, .*' bench alibi "${small[@]}" --pass prefill-chunk --rows 5 --kv-dtype bf16
check "its width" test -z "$(grep -E '.{101}' "$work/out")"
check "its columns" grep -Eq ' GFLOP/s % of peak +x nope ' "$work/out"
check "decode --json" says '"pass":"decode",.*"q_len":1,"k_len":33,.*"gflops":[0-9.e-]+,.*"percent_of_peak":[0-9.e-]+,"gbytes_per_s":[0-9.e-]+,"peak_gbytes_per_s":[0-9.]+,"percent_of_stream":[0-9.e-]+,"ratio_to_nope":[0-9.]+,' bench t5 "${small[@]}" --json --pass decode
check "values in keys" says '^values are the first 8 channels of the keys$' bench nope "${small[@]}" --pass decode --values-in-keys 8
for option in '--cache --pass decode' --fast '--threads 2' '--dropout 0.5' '--isa scalar' "--against $LOCI" --serve '--parallel zigzag'; do
    check "no $option there" refused "bench: --device does not support ${option%% *}$" bench nope "${small[@]}" $option
done

harness_end
