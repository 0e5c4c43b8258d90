#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh BUILD-DIR SECONDS NAME...: replays the committed seeds, then fuzzes for SECONDS each. New inputs
# stay in BUILD-DIR/corpus; what crashes is left there as BUILD-DIR/crash-*.
set -u
build=$1 seconds=$2
shift 2
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
for name; do
    seeds=tests/fuzz/corpus/$name
    grown=$build/corpus/$name
    mkdir -p "$grown"
    [ -d "$seeds" ] || { echo "fuzz: no seeds in $seeds" >&2; exit 1; }
    out=$("$build/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$build/crash-$name-" "$grown" "$seeds" 2>&1) || {
        printf '%s\n' "$out" | tail -n 60
        echo "fuzz: $name FAILED; the input is $build/crash-$name-*"
        exit 1
    }
    echo "  fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' <<<"$out") runs, no finding"
done
