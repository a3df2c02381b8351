#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The transport over MPI, and attention over it, in one to four processes on this machine:
# tests/distributed/mpi.c.
. tests/support/harness.sh
left_out() { printf "mpi: left out: %s\n0 passed, 0 failed\n" "$*"; exit 0; }
[ -n "${LOCI_TEST:-}" ] || left_out "this build has no MPI (Debian: libopenmpi-dev openmpi-bin)"

# MPI libraries leak memory of their own at exit.
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}

# A launcher belongs to one MPI.  If two are installed, either may be called mpiexec.
kind() { if grep -Eq 'Open MPI|OpenRTE' <<<"$1"; then echo open; else echo other; fi; }
library=$("$LOCI_TEST" library)
starter=
for name in "${LOCI_MPIEXEC:-mpiexec}" mpiexec mpiexec.openmpi mpiexec.mpich mpiexec.hydra mpirun; do
    said=$("$name" --version 2>/dev/null) || continue
    [ "$(kind "$said")" != "$(kind "$library")" ] || { starter=$name; break; }
done
[ -n "$starter" ] || left_out "there is no mpiexec for $(head -n 1 <<<"$library")"

flags=()
if [ "$(kind "$library")" = open ]; then
    # Permits more processes than cores, without binding and with yielding; and no other machines.
    flags=(--oversubscribe)
    [ "$(id -u)" -ne 0 ] || flags+=(--allow-run-as-root)
    export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_plm=isolated
fi
export UCX_LOG_LEVEL=error               # it reports unreceived messages, which are tested here
ranks() {                                # COUNT WHAT...: the program in COUNT processes
    timeout 300 "$starter" "${flags[@]}" -n "$1" "$LOCI_TEST" "${@:2}" >"$work/out" 2>"$work/err"
}
check "MPI without threads is refused" ranks 1 single
check "MPI that begins and ends with the transport" ranks 2 world
check "what never comes, 2 ranks" ranks 2 late
"$LOCI_TEST" alone >"$work/alone"
check "attention in one process" test "$(grep -c rows: "$work/alone")" -ge 20
for n in 1 2 3 4; do
    check "the transport, and attention, $n ranks" ranks $n failing transport attention
    check "attention, $n ranks, the bits of one process" diff <(grep rows: "$work/out") <(grep rows: "$work/alone")
done
# The example's output is the same for any number of processes.  Its many rows would take minutes
# under sanitizers, where the tests of ranks cover the code.
example() { timeout 300 "$starter" "${flags[@]}" -n "$1" "$LOCI_EXAMPLE" >"$work/example$1" 2>"$work/err"; }
if [ -n "${LOCI_EXAMPLE:-}" ] && [ -z "${LOCI_SANITIZE:-}" ]; then
    check "the example, alone" example 1
    check "it has a prompt, gradients and a token" \
        test "$(grep -Ec '^(prompt|dq|dk and dv|token) +[0-9a-f]{16}$|^tables +[0-9.]+$' "$work/example1")" -eq 5
    check "the example, 3 ranks" example 3
    check "with the same bits" cmp "$work/example1" "$work/example3"
fi
harness_end
