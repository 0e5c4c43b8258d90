#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh [fast]: all checks in order, cheapest first; ends at the first that fails. `fast` leaves out what
# needs a VM.
set -eu
jobs=$(nproc)
start=$SECONDS

step() { # NAME MAKE-ARGUMENT...
    local name=$1 from=$SECONDS
    shift
    echo "== $name"
    make --no-print-directory -j"$jobs" "$@" || {
        echo "check: FAILED at: $name (make $*)"
        exit 1
    }
    echo "   $((SECONDS - from)) s"
}

if [ "${1-}" != fast ] && [ ! -c /dev/kvm ]; then
    echo "check: FAILED: /dev/kvm is missing; load a KVM module (kvm_intel, kvm_amd or kvm_pvm)" >&2
    exit 1
fi
step "style" layers headers mirror format-check
step "build with gcc" build size
step "build with clang" VARIANT=clang programs unit-programs
step "unit tests" unit
step "unit tests under ASan and UBSan" VARIANT=asan unit
step "the interpreter kernel" test-guest
step "lint" lint
step "fuzz: inputs in the tree, under ASan and UBSan" VARIANT=asan fuzz-replay
step "fuzz" fuzz
if [ "${1-}" != fast ]; then
    step "threads under TSan" tsan
    step "a hostile guest" hostile
    step "guest kernel, root image, template" template
    step "end to end" e2e
    step "faults" faults
    step "isolation" isolation
    step "the benchmarks' programs" test-bench
fi
echo "check: all passed in $((SECONDS - start)) s"
