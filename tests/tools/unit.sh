#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# unit.sh BUILD-DIR TEST...: runs Criterion programs and prints their own summary lines. A sanitizer's
# report fails the run even where Criterion itself succeeds: it does not see leaks.
set -u
build=$1
shift
[ $# -gt 0 ] || { echo "unit: no such test" >&2; exit 1; }

san=$build/san
rm -rf "$san" && mkdir -p "$san"
san=$(cd "$san" && pwd)
export UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=exitcode=0 # reports decide, see below

# A report counts unless all it has is memory that Criterion's own code allocated and lost.
counts() { # REPORT
    awk '/ leak of / { leak = 1 } leak && /^ *#1 / { leak = 0; if (!/libcriterion/) real = 1 }
        /ERROR: / && !/LeakSanitizer: detected memory leaks/ || /runtime error/ { real = 1 }
        END { exit !real }' "$1"
}

failed=()
for t; do
    export ASAN_OPTIONS=log_path=$san/${t##*/}:detect_leaks=1:allocator_may_return_null=1
    out=$(timeout 300 "$t" 2>&1)
    rc=$?
    # More than one line only when a test has said why it skipped or failed.
    line=$(grep -a Synthesis <<<"$out" | sed 's/\x1b\[[0-9;]*m//g; s/.*Synthesis: //')
    reports=
    for r in "$san/${t##*/}".*; do
        [ ! -s "$r" ] || ! counts "$r" || reports="$reports $r"
    done
    case $line in
    ''|'Tested: 0 '*) rc="$rc, ran no test" ;;
    esac
    if [ "$rc" != 0 ] || [ -n "$reports" ]; then
        failed+=("${t#"$build"/unit/}")
        printf '%s\n' "$out" | tail -n 60
        [ -z "$reports" ] || head -n 60 $reports
        echo "unit: FAILED ${t#"$build"/} (exit $rc)"
        continue
    fi
    grep -a SKIP <<<"$out"
    printf '  %-32s %s\n' "${t#"$build"/unit/}" "$line"
done
[ ${#failed[@]} = 0 ] || { echo "unit: ${#failed[@]} of $# programs failed: ${failed[*]}"; exit 1; }
echo "unit: $# programs passed (${build##*/})"
