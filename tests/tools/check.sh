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

# What comes from PyPI and npm, once. Where nobody answers there is nothing to test with; what is refused is a failure.
step_from_registry() { # NAME PREPARING-TARGET MAKE-ARGUMENT...
    local name=$1 target=$2 log
    shift 2
    log=$(mktemp)
    if make --no-print-directory "$target" >"$log" 2>&1; then
        step "$name" "$@"
    elif grep -qE 'from versions: none|ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN' "$log"; then
        echo "== $name"
        echo "   SKIPPED: PyPI or npm do not answer, and their packages are not in out/ yet: $(grep -m 1 -iE "error" "$log")"
    else
        cat "$log"
        echo "check: FAILED at: $name (make $target)"
        exit 1
    fi
    rm -f "$log"
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
step_from_registry "the Python package, without VMs" sdk-packages sdk "M=not vm"
step "fuzz: inputs in the tree, under ASan and UBSan" VARIANT=asan fuzz-replay
step "fuzz" fuzz
if [ "${1-}" != fast ]; then
    step "threads under TSan" tsan
    step "a hostile guest" hostile
    step "guest kernel, root image, template" template
    step "end to end" e2e
    step "faults" faults
    step "isolation" isolation
    step_from_registry "E2B's SDKs, in part" e2b-sdks e2b "M=not slow" \
        "K=test_daemon or test_openapi or test_install or test_results or test_hostile or test_languages"
    step "the benchmarks' programs" test-bench
fi
echo "check: all passed in $((SECONDS - start)) s"
