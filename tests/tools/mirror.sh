#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mirror.sh: every source file has a unit test of its name, or stands in mirror.txt with a reason; and
# mirror.txt holds nothing that is not needed.
set -u
list=tests/tools/mirror.txt
failed=0 n=0
for f in core/*.c devices/*.c vmm/*.c api/*.c api/daemon/*.c; do
    [ -e "$f" ] || continue
    n=$((n + 1))
    reason=$(sed -n "s|^$f  *\(..*\)$|\1|p" $list)
    if [ -e "tests/unit/${f%/*}/test_$(basename "$f")" ]; then
        [ -z "$reason" ] || { echo "mirror: $f has a test now: take it out of $list"; failed=1; }
    elif [ -z "$reason" ]; then
        echo "mirror: $f: no tests/unit/${f%/*}/test_$(basename "$f"), and no reason in $list"
        failed=1
    fi
done
while read -r f _; do
    case $f in ''|'#'*) continue ;; esac
    [ -e "$f" ] || { echo "mirror: $list names $f, which is not there"; failed=1; }
done <$list
[ $failed = 0 ] && echo "mirror: $n source files have their test or a reason"
exit $failed
