#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Called by build.sh, as root or in a user name space: lays agent, interpreter kernel and template
# over a copy of the package tree and makes the image of it. Variables: base, tmp, repo, template,
# warmup.
set -euo pipefail

tree=$tmp/tree
lib=$tree/usr/lib/thawbox

# Hard links: seconds instead of a copy. Files are only added or replaced (install unlinks first),
# never changed in place, as the links are shared with the cached tree.
cp -al "$base" "$tree"

rm -f "$tree/sbin/init"
install -D -m 0755 "$tmp/build/init" "$tree/usr/sbin/init"
install -d -m 0755 "$tree/etc/thawbox" "$lib" "$tree/.thawbox" "$tree/.thawbox/rw" "$tree/.thawbox/root"
install -m 0644 "$template/template.json" "$tree/etc/thawbox/template.json"
[ -z "$warmup" ] || install -m 0644 "$template/$warmup" "$tree/etc/thawbox/$warmup"
for f in "$repo"/guest/python/*.{py,js} "$tmp"/build/{_thawbox.so,thawbox_reseed.node}; do
	[ ! -e "$f" ] || install -m 0644 "$f" "$lib/"
done
chroot "$tree" python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/thawbox

# Uncompressed: all sandboxes share its pages, and a guest's kernel may be too slow to decompress.
mkfs.erofs --quiet -T"$SOURCE_DATE_EPOCH" -U 7468617a-626f-7800-0000-000000000000 \
	"$tmp/root.img" "$tree"
