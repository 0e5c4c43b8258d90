#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs as mmdebstrap's customize hook: $1 is the root tree, all packages are installed.
# Everything here depends on packages and this file only, so that the tree can be cached.
set -eu

root=$1
dist=$root/usr/lib/python3/dist-packages

# --- pip packages of a template (before trimming and byte-compiling, so both cover them)
if [ -n "${TB_PIP_PACKAGES:-}" ]; then
	set -f # words, not patterns: x[extra]
	# shellcheck disable=SC2086
	"$(dirname "$0")/pip.sh" "$root" "$TB_PIP_DIR" $TB_PIP_PACKAGES
	set +f
fi
# pip in the guest: `pip install x` must work there too.
printf '[global]\nbreak-system-packages = true\nno-cache-dir = true\n' > "$root/etc/pip.conf"

# --- the user
chroot "$root" useradd --create-home --uid 1000 --user-group --shell /bin/bash user
printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\nDefaults !lecture, !fqdn, env_file=/run/environment\n' > "$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"
printf 'LANG=C.UTF-8\nLC_ALL=C.UTF-8\n' > "$root/etc/default/locale"

# --- names
printf 'thawbox\n' > "$root/etc/hostname"
printf '127.0.0.1\tlocalhost\n' > "$root/etc/hosts"
: > "$root/etc/resolv.conf"

# --- trimming: tests and headers that no program opens at run time
find "$dist" "$root/usr/local/lib" -type d \( -name tests -o -name test \) \
	-path '*-packages/*' -prune -exec rm -rf {} +
rm -rf "$root"/usr/lib/python3.11/lib2to3/tests \
	"$root"/usr/share/icons "$root"/usr/share/lintian "$root"/usr/share/bug \
	"$root"/usr/share/matplotlib/mpl-data/sample_data
rm -rf "$root"/usr/share/zoneinfo/right "$root"/usr/share/zoneinfo/posix \
	"$root"/var/lib/dpkg/info/*.md5sums
# servers and senders of mail, each with all of git linked in
for tool in daemon http-backend http-fetch http-push imap-send shell; do
	rm -f "$root/usr/lib/git-core/git-$tool" "$root/usr/bin/git-$tool"
done
rm -f "$root/usr/bin/scalar" "$root/usr/lib/git-core/scalar"
# iconv's tables but for the common ones; UTF-8 and Python's own codecs need none
find "$root/usr/lib/x86_64-linux-gnu/gconv" -name '*.so' ! -name 'UTF-*' ! -name 'ISO8859-1.so' \
	! -name 'ISO8859-15.so' ! -name 'CP1252.so' ! -name 'UNICODE.so' -delete

# --- matplotlib: draw to memory, and no search for fonts at the first plot (which goes through a set: the same order each time)
sed -i 's/^#* *backend *:.*/backend: Agg/' "$root/etc/matplotlibrc"
grep -q '^backend: Agg$' "$root/etc/matplotlibrc"
chroot --userspec=1000:1000 "$root" env HOME=/home/user LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 \
	python3 -c 'import matplotlib.font_manager as f; assert f.findfont("DejaVu Sans")'
ls "$root"/home/user/.cache/matplotlib/fontlist-*.json > /dev/null

# --- byte code that Python takes without a stat of its source (files have no real times)
find "$root/usr/lib/python3" "$root/usr/lib/python3.11" "$root/usr/local/lib" \
	-name __pycache__ -type d -prune -exec rm -rf {} +
chroot "$root" python3 -m compileall -q -j0 --invalidation-mode unchecked-hash \
	-x 'lib2to3/tests|bad_coding|/_template' \
	/usr/lib/python3.11 /usr/lib/python3/dist-packages /usr/local/lib || {
	echo 'customize: some Python file does not compile; its package is broken' >&2
	exit 1
}

# --- the package source of this build that only it can reach
sed -i '/ copy:/d' "$root/etc/apt/sources.list"

# --- nothing of this build and nothing unique: sandboxes are made from this by the thousand
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old \
	"$root"/var/log/*.log "$root"/var/log/apt "$root"/var/cache/ldconfig \
	"$root"/etc/machine-id "$root"/var/lib/dbus/machine-id "$root"/root/.cache \
	"$root"/etc/.pwd.lock "$root"/var/lib/dpkg/*-old
