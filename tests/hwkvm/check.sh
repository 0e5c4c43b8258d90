#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD: in the bed (hwkvm.sh): boots, bakes the template, and runs the end-to-end tests whose outcome the kind
# of KVM may change. Times mean nothing here.
set -eu
export THAWBOX_BIN=$1 THAWBOX_HOME=/tmp/thawbox THAWBOX_ASSETS=$PWD/out
grep -q '^Y\|^1' /sys/module/kvm_amd/parameters/npt && echo "hwkvm: kvm_amd with nested paging" || echo "hwkvm: kvm_amd with shadow paging"
cd "$(dirname "$0")/../.."
# (Memory on both sides of the hole is more than the bed has.)
/usr/bin/python3 -m pytest -q -rs -p no:cacheprovider tests/e2e/test_machine.py tests/e2e/test_freeze.py \
	-k "not both_sides_of_the_hole"
"$THAWBOX_BIN/thawbox" template build code-interpreter
exec /usr/bin/python3 -m pytest -q -rs -p no:cacheprovider tests/e2e/test_thaw.py tests/e2e/test_idle.py tests/e2e/test_cells.py \
	tests/e2e/test_unique.py tests/e2e/test_snapshot.py tests/e2e/test_pool.py
