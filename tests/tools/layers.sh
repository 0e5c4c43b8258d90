#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# layers.sh: the folders form a graph without cycles: tests, bench -> api, vmm -> devices -> core.
# Fails on an include that points upward or sideways, and on one that is not rooted at the top.
set -eu

awk '
function allow(from, to) { ok[from, to] = 1 }
BEGIN {
    allow("core", "core")
    allow("devices", "core"); allow("devices", "devices")
    allow("vmm", "core"); allow("vmm", "devices"); allow("vmm", "vmm")
    allow("api", "core"); allow("api", "api")
    allow("api/daemon", "core"); allow("api/daemon", "api"); allow("api/daemon", "api/daemon")
    allow("bench", "core"); allow("bench", "api"); allow("bench", "bench")
    allow("guest/init", "guest/init"); allow("guest/python", "guest/python")
}
/^[ \t]*#[ \t]*include[ \t]+"/ {
    split($0, part, "\""); inc = part[2]
    from = FILENAME; sub("/[^/]*$", "", from)
    to = inc
    if (!sub("/[^/]*$", "", to)) to = from ~ /^guest/ ? from : "(not rooted)" # guest parts build alone
    if (from ~ /^tests/) {
        if (to == "(not rooted)" || to ~ /\.\./) bad(inc, "write the path from the top")
        next
    }
    if (!((from, to) in ok)) bad(inc, from " must not include " to)
}
# KVM is the business of vmm/ alone, so that devices run in a test without it.
/^[ \t]*#[ \t]*include[ \t]*<linux\/kvm\.h>/ && FILENAME !~ /^vmm\// { bad("linux/kvm.h", "only vmm/ may") }
function bad(inc, why) { printf "%s:%d: %s: %s\n", FILENAME, FNR, inc, why; failed = 1 }
END { if (!failed) print "layers: no include points upward"; exit failed }
' $(find core devices vmm api bench guest/init guest/python tests/unit tests/fuzz -name '*.[ch]' 2>/dev/null)
