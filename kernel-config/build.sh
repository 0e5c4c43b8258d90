#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Build the guest kernel: vmlinux, bzImage, System.map, symbols, config.
# Run with --help for the usage; docs/guest-kernel.md says what is in it and why.

set -euo pipefail
export LC_ALL=C

HERE=$(cd "$(dirname "$0")" && pwd)
DEFAULT_TARBALL=/usr/src/linux-source-6.12.tar.xz
NEED_MIB=2500         # unpacked source 1.5 GB, objects 0.3 GB, room for one more
GUESSED_OBJECTS=970   # of the first build; later ones use the count of the last
VIRTUAL_BASE=ffffffff80000000 # __START_KERNEL_map: subtract it to get the guest-physical address

usage() {
	cat <<TEXT
Usage: build.sh OUTDIR

Builds the guest kernel into OUTDIR/kernel/<hash>/ and points OUTDIR/kernel/current at it. The
hash covers the source, the configuration, the patches, the compiler and this script: a second run
with nothing changed only checks it.

Environment
  KERNEL_TARBALL  source to use (default: $DEFAULT_TARBALL)
  JOBS            parallel jobs (default: number of CPUs)
TEXT
}

die() { # message, remedy
	printf 'kernel: error: %s\n' "$1" >&2
	[ $# -lt 2 ] || printf 'kernel:   %s\n' "$2" >&2
	exit 1
}

check_tools() {
	local tool missing=""
	for tool in gcc:gcc ld:binutils make:make flex:flex bison:bison bc:bc patch:patch xz:xz-utils \
		tar:tar flock:util-linux; do
		command -v "${tool%%:*}" >/dev/null || missing+=" ${tool##*:}"
	done
	# objtool, a build tool of the kernel, needs the header.
	if command -v gcc >/dev/null && ! echo '#include <gelf.h>' | gcc -E - >/dev/null 2>&1; then
		missing+=" libelf-dev"
	fi
	[ -z "$missing" ] || die "missing to build a kernel:$missing" "apt-get install$missing"
}

check_space() {
	local free
	free=$(df -BM --output=avail "$OUT" | tail -1 | tr -dc 0-9)
	[ "$free" -ge "$NEED_MIB" ] ||
		die "$OUT has $free MiB free, the build needs $NEED_MIB MiB" \
			"free some space or name another OUTDIR"
}

# The source's checksum, remembered by the file's size and time: it takes a second to compute.
source_hash() {
	local identity
	identity=$(stat -Lc '%n %s %Y %i' "$TARBALL")
	if [ "$(head -1 "$OUT/.source" 2>/dev/null)" != "$identity" ]; then
		{ echo "$identity" && sha256sum <"$TARBALL"; } >"$OUT/.source"
	fi
	tail -1 "$OUT/.source"
}

# Everything the result is made from.
inputs_hash() {
	{
		source_hash
		gcc --version | head -1
		ld --version | head -1
		cd "$HERE" && sha256sum build.sh x86_64.config patches/*.patch symbols/*
	} | sha256sum | cut -c1-16
}

# A bar on a terminal, a line now and then elsewhere, while process $1 works and logs to $2.
show_progress() {
	local pid=$1 log=$2 total=$GUESSED_OBJECTS start=$SECONDS next=0 n=0 percent elapsed bar
	[ ! -s "$OUT/.objects" ] || total=$(<"$OUT/.objects")
	while kill -0 "$pid" 2>/dev/null; do
		sleep 1
		n=$(grep -cE '^  (CC|AS) ' "$log" || true)
		percent=$((n * 100 / total))
		[ "$percent" -lt 99 ] || percent=99
		elapsed=$((SECONDS - start))
		if [ -t 2 ]; then
			printf -v bar '%*s' $((percent / 4)) ''
			printf '\rkernel: [%-25s] %2d%%  %d of about %d objects, %d:%02d ' "${bar// /#}" \
				"$percent" "$n" "$total" $((elapsed / 60)) $((elapsed % 60)) >&2
		elif [ "$elapsed" -ge "$next" ]; then
			printf 'kernel: compiling, %d%%, %d of about %d objects, %d:%02d\n' "$percent" "$n" \
				"$total" $((elapsed / 60)) $((elapsed % 60)) >&2
			next=$((elapsed + 30))
		fi
	done
	[ ! -t 2 ] || printf '\r\033[K' >&2
	echo "$n" >"$WORK/objects"
}

unpack() {
	echo "kernel: unpacking $TARBALL" >&2
	mkdir "$WORK/src" "$WORK/obj" "$WORK/out"
	tar -xf "$TARBALL" -C "$WORK/src" --strip-components=1 ||
		die "cannot unpack $TARBALL" "is it a kernel source tarball, and whole?"
	[ -f "$WORK/src/Kbuild" ] ||
		die "$TARBALL holds no kernel source" "set KERNEL_TARBALL to a Linux 6.12 tarball"

	local p version
	version=$(make -s -C "$WORK/src" kernelversion)
	for p in "$HERE"/patches/*.patch; do
		patch -s -d "$WORK/src" -p1 --no-backup-if-mismatch <"$p" ||
			die "${p##*/} does not apply to Linux $version" \
				"the patches are for 6.12; set KERNEL_TARBALL to such a source"
	done
	mkdir "$WORK/src/thawbox"
	cp "$HERE"/symbols/*.[ch] "$WORK/src/thawbox/"
	echo 'subdir-y += thawbox' >>"$WORK/src/Kbuild"
	echo 'targets += random.s sched.s time.s timers.s' >"$WORK/src/thawbox/Makefile"
}

# Everything off but what the file asks for. Kconfig drops silently what it does not know or what
# lacks a dependency, so compare.
configure() {
	local line name bad=""
	kmake KCONFIG_ALLCONFIG="$HERE/x86_64.config" allnoconfig >"$WORK/log" 2>&1 ||
		die "configuration failed" "$(tail -3 "$WORK/log")"
	while read -r line; do
		case $line in
		CONFIG_*=n | '# CONFIG_'*' is not set')
			name=${line#\# } name=${name%%[ =]*}
			! grep -q "^$name=" "$WORK/obj/.config" || bad+=" $name(still set)"
			;;
		CONFIG_*)
			grep -qxF "$line" "$WORK/obj/.config" || bad+=" ${line%%=*}(not taken)"
			;;
		esac
	done <"$HERE/x86_64.config"
	[ -z "$bad" ] || die "options that did not take:$bad" \
		"they lack a dependency or this kernel does not know them: see x86_64.config"
}

kmake() {
	make -s -C "$WORK/src" O="$WORK/obj" ARCH=x86_64 "$@"
}

compile() {
	local log=$WORK/log status=0
	# Without -s: the bar counts the lines.
	make -C "$WORK/src" O="$WORK/obj" ARCH=x86_64 -j"${JOBS:-$(nproc)}" vmlinux bzImage \
		>"$log" 2>&1 &
	show_progress $! "$log"
	wait $! || status=$?
	if [ "$status" -ne 0 ]; then
		cp "$log" "$OUT/failed.log"
		grep -E '(error|Error|warning):|No space' "$log" | head -5 >&2 || true
		die "compilation failed" "the whole output is in $OUT/failed.log"
	fi
}

# "name virtual-address size", all hexadecimal, of what the monitor writes at a thaw.
write_symbols() {
	local unit name where size symbol address count=0
	declare -A map
	while read -r address _ symbol; do
		map[$symbol]=$address
	done <"$WORK/obj/System.map"

	echo "virtual_base $VIRTUAL_BASE 0"
	for unit in "$WORK"/src/thawbox/*.c; do
		unit=$(basename "$unit" .c)
		kmake "thawbox/$unit.s" >"$WORK/log" 2>&1 ||
			die "symbols/$unit.c: this kernel differs: $(grep -m1 'error:' "$WORK/log")" \
				"adapt symbols/$unit.c and docs/guest-kernel.md to this kernel version"
		while read -r name where size _; do
			symbol=${where%%[+]*}
			[ -n "${map[$symbol]:-}" ] || die "System.map has no $symbol ($name)" \
				"adapt symbols/$unit.c to this kernel version"
			address=$((0x${map[$symbol]} + ${where#"$symbol"} + 0))
			printf '%s %x %x\n' "$name" "$address" "$size"
			count=$((count + 1))
		done < <(sed -n 's/^->//p' "$WORK/obj/thawbox/$unit.s")
	done
	[ "$count" -eq "$(grep -hc '^	EMIT(' "$WORK"/src/thawbox/*.c | paste -sd+ | bc)" ] ||
		die "the compiler emitted $count symbols, fewer than asked" "see symbols/emit.h"
}

publish() {
	local out=$WORK/out
	objcopy --strip-debug "$WORK/obj/vmlinux" "$out/vmlinux"
	cp "$WORK/obj/arch/x86/boot/bzImage" "$out/bzImage"
	cp "$WORK/obj/System.map" "$out/System.map"
	cp "$WORK/obj/.config" "$out/config"
	cp "$WORK/objects" "$OUT/.objects"
	mv -T "$out" "$OUT/$HASH"
}

point_current() {
	ln -s "$HASH" "$OUT/.current.$$"
	mv -T "$OUT/.current.$$" "$OUT/current"
}

case ${1:-} in
-h | --help)
	usage
	exit 0
	;;
esac
[ $# -eq 1 ] || {
	usage >&2
	exit 2
}
[ "$(uname -m)" = x86_64 ] || die "this is $(uname -m); the guest kernel is built on x86_64"
TARBALL=${KERNEL_TARBALL:-$DEFAULT_TARBALL}
[ -r "$TARBALL" ] || die "no kernel source at $TARBALL" \
	"apt-get install linux-source-6.12, or set KERNEL_TARBALL=path"
check_tools
mkdir -p "$1/kernel"
OUT=$(cd "$1/kernel" && pwd)

# One build at a time; whoever waited finds it done.
exec 9>"$OUT/.lock"
flock 9
HASH=$(inputs_hash)
if [ ! -e "$OUT/$HASH" ]; then
	rm -rf "$OUT"/.build-*
	check_space
	WORK=$(mktemp -d "$OUT/.build-XXXXXX")
	trap 'rm -rf "$WORK"' EXIT
	trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
	# The same inputs give the same bytes, whoever builds.
	export KBUILD_BUILD_USER=thawbox KBUILD_BUILD_HOST=thawbox LOCALVERSION=
	KBUILD_BUILD_TIMESTAMP=$(date -u -r "$TARBALL")
	export KBUILD_BUILD_TIMESTAMP
	unpack
	configure
	compile
	write_symbols >"$WORK/out/symbols"
	publish
fi
point_current
echo "kernel: $OUT/current/vmlinux ($HASH)" >&2
