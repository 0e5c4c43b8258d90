#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the guest's root image: Debian and Python packages, the agent, the interpreter kernel, a
# template. See docs/guest.md. Standard output: the folder of the image, one line.
set -euo pipefail
export LC_ALL=C
export SOURCE_DATE_EPOCH=1735689600
umask 022

usage() {
	cat <<'TEXT'
Usage: build.sh OUTDIR [--template DIR] [--refresh]

Makes OUTDIR/rootfs/HASH/{root.img,scratch.img,template.json}, unless it is there already, and the
link OUTDIR/rootfs/current (with --template: OUTDIR/rootfs/template-NAME). Prints the folder.

  --template DIR  a folder with template.json (default: the code-interpreter template)
  --refresh       install the packages anew, to get Debian's and pip's newest versions

Environment: TB_DEBIAN_MIRROR (default http://deb.debian.org)
TEXT
}

say() { printf 'rootfs: %s\n' "$*" >&2; }
die() { printf 'rootfs: error: %s\n        remedy: %s\n' "$1" "$2" >&2; exit 1; }

need() { # COMMAND PACKAGE
	command -v "$1" > /dev/null || die "$1 is not installed" "apt-get install $2"
}

# Runs "$@" behind a line with what it does and for how long; its messages go to a log.
progress() { # TEXT LOG COMMAND...
	local text=$1 log=$2 start=$SECONDS pid
	shift 2
	"$@" > "$log" 2>&1 &
	pid=$!
	trap 'kill $pid 2> /dev/null; exit 130' INT TERM
	[ -t 2 ] || say "$text"
	while kill -0 $pid 2> /dev/null; do
		if [ -t 2 ]; then
			printf '\r\033[Krootfs: %s [%d:%02d] %.60s' "$text" $(((SECONDS - start) / 60)) \
				$(((SECONDS - start) % 60)) "$(tail -n 1 "$log" | tr '\r' ' ')" >&2
		fi
		sleep 0.3
	done
	trap - INT TERM
	[ ! -t 2 ] || printf '\r\033[K' >&2
	if ! wait $pid; then
		tail -n 20 "$log" >&2
		! grep -A 1 '^rootfs: error: ' "$log" >&2 || exit 1 # it has told why
		die "$text failed (whole log: $log)" \
			"see the lines above; packages come from ${TB_DEBIAN_MIRROR:-http://deb.debian.org}"
	fi
	say "$text: done in $((SECONDS - start)) s"
	sed -n 's/^note: /rootfs: note: /p' "$log" >&2
}

# Checks template.json and prints its lists as shell words; the only reader of the format here.
template_vars() { # DIR
	python3 - "$1/template.json" <<'PY'
import json, os, re, shlex, sys

path = sys.argv[1]
def bad(what):
    sys.exit(f"rootfs: error: {path}: {what}\n        remedy: see docs/guest.md, \"Templates\"")
try:
    with open(path, encoding="utf-8") as f:
        t = json.load(f)
except OSError as e:
    bad(e.strerror)
except ValueError as e:
    bad(f"not JSON: {e}")
if not isinstance(t, dict):
    bad("not a JSON object")
known = {"name", "packages", "memory_mb", "vcpus", "kernels", "warmup", "env"}
if set(t) - known:
    bad(f"unknown member {sorted(set(t) - known)[0]!r} (known: {', '.join(sorted(known))})")
if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", str(t.get("name"))):
    bad("\"name\" must be 1 to 63 of a-z, 0-9 and -")
for key, low, high in ("memory_mb", 128, 1 << 20), ("vcpus", 1, 64), ("kernels", 0, 2):
    v = t.get(key, low)
    if type(v) is not int or not low <= v <= high:
        bad(f"\"{key}\" must be a whole number from {low} to {high}")
warmup = t.get("warmup")
if warmup is not None and (not isinstance(warmup, str) or "/" in warmup
                           or not os.path.isfile(os.path.join(os.path.dirname(path), warmup))):
    bad("\"warmup\" must name a file beside template.json")
env = t.get("env", {})
if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
    bad("\"env\" must be an object of strings")
packages = t.get("packages", {})
if not isinstance(packages, dict) or set(packages) - {"apt", "pip"}:
    bad("\"packages\" must be an object with the lists \"apt\" and \"pip\"")
for kind, pattern in ("apt", r"[a-z0-9][a-z0-9+.-]+"), ("pip", r"[A-Za-z0-9][A-Za-z0-9._\[\],<>=!~+-]*"):
    names = packages.get(kind, [])
    if not isinstance(names, list):
        bad(f"\"packages.{kind}\" must be a list")
    for n in names:
        if not isinstance(n, str) or not re.fullmatch(pattern, n):
            bad(f"{n!r} is no name of a package of {kind}")
    print(f"{kind}={shlex.quote(' '.join(sorted(set(names))))}")
print(f"name={t['name']}\nwarmup={shlex.quote(warmup or '')}")
PY
}

hash_of() { cat "$@" | sha256sum | cut -c1-16; }

main() {
	local out='' template='' refresh=0 here repo
	while [ $# -gt 0 ]; do
		case $1 in
		--template) template=${2:?--template needs a folder}; shift ;;
		--refresh) refresh=1 ;;
		-h | --help) usage; exit 0 ;;
		-*) usage >&2; exit 2 ;;
		*) [ -z "$out" ] || { usage >&2; exit 2; }; out=$1 ;;
		esac
		shift
	done
	[ -n "$out" ] || { usage >&2; exit 2; }
	here=$(cd "$(dirname "$0")" && pwd)
	repo=$(cd "$here/../.." && pwd)
	link=current
	need python3 python3-minimal
	if [ -n "$template" ]; then
		vars=$(template_vars "$template") || exit 1
		eval "$vars"
		link=template-$name
	else
		template=$repo/guest/templates/code-interpreter
		vars=$(template_vars "$template") || exit 1
		eval "$vars"
	fi

	mkdir -p "$out/rootfs"
	out=$(cd "$out/rootfs" && pwd)
	exec 9> "$out/.lock"
	flock -n 9 || { say "another build runs in $out; waiting for it"; flock 9; }

	find_lock
	set_keys
	if [ $refresh = 1 ] || [ ! -e "$out/$key/root.img" ]; then
		need mmdebstrap mmdebstrap
		need mkfs.erofs erofs-utils
		need mke2fs e2fsprogs
		need gcc gcc
		if [ $refresh = 1 ] || [ ! -d "$out/base-$base_key" ]; then
			make_base
		fi
		[ -e "$out/$key/root.img" ] || make_image
		keep_lock
	fi
	ln -sfn "$key" "$out/.link.$$"
	mv -T "$out/.link.$$" "$out/$link"
	touch "$out/$key"
	echo "$out/$key"
}

# lock: the file that says what pip installs, when there is one that answers the template's list. Where the
# template's folder cannot be written to, that of its last image.
find_lock() {
	local folder
	lock=
	[ -n "$pip" ] && [ $refresh = 0 ] || return 0
	for folder in "$template" "$out/$link"; do
		if grep -qsxF "# of: $pip" "$folder/pip.lock"; then
			lock=$folder/pip.lock
			return
		fi
		[ ! -e "$folder/pip.lock" ] || say "$folder/pip.lock is of another list of packages: versions are chosen anew"
		[ ! -w "$template" ] || return 0
	done
}

# Two keys: packages (slow) and what is laid over them (seconds). Packages of pip that have no lock yet give a
# key that no folder has.
set_keys() {
	base_key=$({ cat "$here"/{base.sh,customize.sh,packages.txt}; echo "$apt|$pip"
		[ -z "$pip" ] || cat "$here/pip.sh" ${lock:+"$lock"}; } | hash_of -)
	key=$({ echo "$base_key"; cat "$here/build.sh" "$here/layout.sh" "$template/template.json" ${warmup:+"$template/$warmup"}
		find "$repo/guest/init" "$repo/guest/python" -type f \( -name '*.[ch]' -o -name '*.py' -o -name '*.js' -o -name Makefile \) |
		sort | xargs cat; } | hash_of -)
}

# Beside template.json, where the next build finds it, or somebody who builds elsewhere.
keep_lock() {
	local new=$template/.pip.lock.$$
	[ -n "$pip" ] && ! cmp -s "$out/$key/pip.lock" "$template/pip.lock" || return 0
	if { cp "$out/$key/pip.lock" "$new" && mv -T "$new" "$template/pip.lock"; } 2> /dev/null; then
		say "what pip has installed is locked in $template/pip.lock"
	else
		rm -f "$new"
		say "$template cannot be written to: the lock of what pip has installed was not kept there, only as $out/$key/pip.lock"
	fi
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		unshare --map-root-user --map-auto -- "$@"
	fi
}

make_base() {
	local free_mb tmp=$out/.base.$$
	free_mb=$(df -Pm "$out" | awk 'NR == 2 { print $4 }')
	[ "$free_mb" -ge 4096 ] ||
		die "$free_mb MiB are free in $out, a build needs 4096" "free some, or give another OUTDIR"
	if [ "$(id -u)" != 0 ]; then
		as_root true 2> /dev/null || die "user name spaces with more than one user do not work here" \
			"apt-get install uidmap and give $(id -un) a range in /etc/subuid, or run as root"
	fi
	mkdir "$tmp"
	# shellcheck disable=SC2064 # the names of now
	trap "unshare_rm '$tmp'" EXIT
	TB_APT_PACKAGES=$apt TB_PIP_PACKAGES=$pip TB_PIP_LOCK=$lock TB_PIP_WHEELS=$template/wheels \
		TB_AS_ROOT=$([ "$(id -u)" = 0 ] || echo unshare --map-root-user --map-auto --) \
		progress 'installing packages' "$out/base.log" "$here/base.sh" "$tmp"
	as_root chmod 0755 "$tmp"
	if [ -n "$pip" ]; then
		lock=$tmp/etc/thawbox/pip.lock
		set_keys
	fi
	# When pip has chosen as it did before, the packages and the image made of them are there already.
	[ $refresh = 0 ] || as_root rm -rf "$out/base-$base_key" "$out/$key"
	if [ -d "$out/base-$base_key" ]; then
		as_root rm -rf "$tmp"
	else
		mv "$tmp" "$out/base-$base_key"
	fi
	[ -z "$pip" ] || lock=$out/base-$base_key/etc/thawbox/pip.lock
	trap - EXIT
}

unshare_rm() { as_root rm -rf "$@"; }

make_image() {
	local tmp=$out/.image.$$
	mkdir "$tmp"
	# shellcheck disable=SC2064
	trap "unshare_rm '$tmp'" EXIT
	say 'compiling the agent'
	make -s -C "$repo/guest/init" OUT="$tmp/build"
	compile_extensions "$tmp/build"
	progress 'laying out the image' "$out/image.log" \
		as_root env template="$template" warmup="$warmup" repo="$repo" tmp="$tmp" \
		base="$out/base-$base_key" bash "$here/layout.sh"
	make_scratch "$tmp/scratch.img"
	cp "$template/template.json" "$tmp/template.json"
	[ -z "$pip" ] || cp "$lock" "$tmp/pip.lock"
	as_root rm -rf "$tmp/build" "$tmp/tree"
	[ ! -e "$out/$key" ] || as_root rm -rf "$out/$key"
	mv "$tmp" "$out/$key"
	trap - EXIT
	say "root.img $(du -m --apparent-size "$out/$key/root.img" | cut -f1) MiB in $out/$key"
}

# The interpreter's C extension, against the headers of the guest's own Python (Debian 12's 3.11), and that of Node.js.
compile_extensions() { # BUILD
	local src=$repo/guest/python
	[ -e /usr/include/python3.11/Python.h ] || die 'the headers of Python 3.11 are not installed' \
		'apt-get install python3.11-dev (Debian 12)'
	[ -e /usr/include/openssl/rand.h ] || die 'the headers of OpenSSL are not installed' 'apt-get install libssl-dev'
	gcc -shared -fPIC -O2 -Wall -I/usr/include/python3.11 -o "$1/_thawbox.so" "$src/_thawbox.c"
	gcc -shared -fPIC -O2 -Wall -o "$1/thawbox_reseed.node" "$src/thawbox_reseed.c"
}

# The empty file system under every sandbox's writes. Small groups of metadata, all written now and
# together: the guest's kernel does no lazy work, and a sandbox's copy-on-write disk stays small.
# No journal and no checksums: the disk ends with its sandbox, and both cost guest-kernel time.
make_scratch() { # FILE
	truncate -s 8G "$1.full"
	E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH mke2fs -q -t ext4 -F -m 0 -N 262144 -U 74686177-626f-7800-0000-000000000001 -L thawbox \
		-O '^has_journal,^metadata_csum,^uninit_bg,^resize_inode,^64bit' -G 64 \
		-E 'lazy_itable_init=0,packed_meta_blocks=1,nodiscard,root_owner=0:0,hash_seed=7468617a-626f-7800-0000-000000000002' \
		"$1.full"
	cp --sparse=always "$1.full" "$1" # 64 MiB of it are zeros that have blocks
	rm "$1.full"
}

main "$@"
