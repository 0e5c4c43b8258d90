#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hwkvm.sh - run a command on an emulated machine that has hardware KVM.
#
# Boots Debian's own kernel under QEMU's pure software emulation (TCG: needs
# neither /dev/kvm nor any privilege of the CPU) with an emulated AMD CPU that
# has SVM and nested paging, loads kvm_amd there, and runs CMD there. So CMD
# finds a /dev/kvm that behaves like the one on real AMD hardware.
# Run with --help for the usage.

set -uo pipefail

PROG=hwkvm.sh
EX_TOOL=125             # exit status for "the tool itself failed"
EX_TIMEOUT=124          # exit status for "--timeout ran out"

usage() {
	cat <<'EOF'
Usage: hwkvm.sh [OPTION...] DIR CMD [ARG...]
       hwkvm.sh [OPTION...] --prepare

Runs CMD as root, with DIR as its working directory, inside an emulated
x86-64 machine whose /dev/kvm is backed by (emulated) AMD SVM with nested
paging. CMD's standard output and standard error are streamed to this
script's, and its exit status becomes this script's.

What CMD sees
  /            this machine's root file system; writes to it are dropped at
               the end (kept in memory until then)
  DIR          shared live, at the same path, and writable: what CMD writes
               there is on this machine at once
  /dev/kvm     kvm_amd of the Debian kernel, nested paging on
  /tmp, /run   empty, in memory (DIR may lie there; other files of this
               machine's /tmp are not seen)
  stdin        /dev/null
  network      loopback only             hostname  hwkvm

Options
  -m, --memory MIB    memory of the machine (default 3072)
  -c, --cpus N        CPUs of the machine (default 2)
  -t, --timeout SEC   kill the machine after SEC seconds and exit 124
                      (default 0: never)
  -e, --env NAME=VAL  set an environment variable for CMD (repeatable);
                      nothing else but PATH, HOME, TERM and LANG is set
      --modules LIST  also load these kernel modules, comma separated, for
                      example tun,vhost_vsock
      --kvm ARGS      parameters for the kvm module, e.g. "ignore_msrs=1"
      --kvm-amd ARGS  parameters for the kvm_amd module, e.g. "npt=0" for
                      shadow paging instead of nested paging
      --cpu MODEL     QEMU CPU model (default: EPYC, less the features that
                      QEMU cannot emulate; must have svm and npt)
      --kernel PKG    Debian kernel package to use (default: the newest of
                      linux-image-6.12-amd64 and linux-image-amd64 that the
                      package lists have)
      --root DIR      root file system to show as / (default: /)
      --append ARGS   more kernel command line
      --qemu ARGS     more QEMU options, split at blanks
  -v, --verbose       stream the machine's kernel messages to standard error
                      (and boot it in full)
      --boot          boot the machine in full rather than start it from the
                      saved state of a booted one
      --prepare       only fill the cache: download and unpack the kernel,
                      boot the machine once and save its state
  -h, --help          this text

Exit status
  that of CMD; 128+N if CMD died by signal N; 124 if --timeout ran out;
  125 if the machine could not be started, crashed, or ended without saying
  how CMD ended (its last kernel messages then go to standard error).

Needs these Debian packages (no root, no KVM):
  qemu-system-x86 busybox-static cpio zstd xz-utils kmod
and, once, apt-get and a package mirror, to download the kernel package
(about 100 MB). The unpacked kernel is kept in
  ${HWKVM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hwkvm}      (about 200 MB)
Remove that folder to start afresh, for example to take a newer kernel.
The state of a booted machine is kept there too (about 25 MB for each
combination of --memory, --cpus, --cpu and --append used), so that all runs
but the first start from it. Runs with --kvm, --kvm-amd or --qemu boot in full.

Speed: a run from the saved state costs about 2 s of processor time on top of
CMD, a full boot about 10 s. Code in it runs some 10 times slower than here or
more, and a KVM exit takes about 0.1 ms; all that gets several times worse when
this machine is busy, since time in the emulated machine is real time. See that
time limits in your tests allow for that.
EOF
}

say() { printf '%s: %s\n' "$PROG" "$*" >&2; }
die() { say "$@"; exit "$EX_TOOL"; }

# ---------------------------------------------------------------- options --
memory=3072 cpus=2 timeout=0 modules='' kvm_args='' kvm_amd_args='' kernel=''
root=/ append='' qemu_args='' verbose=0 prepare=0 full_boot=0 envs=()
# EPYC, less what QEMU's software emulation lacks (it would only warn).
cpu=EPYC,+svm,+npt,-rdseed,-sha-ni,-fxsr-opt,-misalignsse,-3dnowprefetch,-osvw,-topoext,-nrip-save,-xsavec

need_arg() { [ "$#" -ge 2 ] || die "option $1 needs a value (see --help)"; }
is_num() { case $1 in ''|*[!0-9]*) return 1 ;; esac; }

while [ "$#" -gt 0 ]; do
	case $1 in
	-m|--memory)  need_arg "$@"; memory=$2; shift 2 ;;
	-c|--cpus)    need_arg "$@"; cpus=$2; shift 2 ;;
	-t|--timeout) need_arg "$@"; timeout=$2; shift 2 ;;
	-e|--env)     need_arg "$@"; envs+=("$2"); shift 2 ;;
	--modules)    need_arg "$@"; modules=$2; shift 2 ;;
	--kvm)        need_arg "$@"; kvm_args=$2; shift 2 ;;
	--kvm-amd)    need_arg "$@"; kvm_amd_args=$2; shift 2 ;;
	--cpu)        need_arg "$@"; cpu=$2; shift 2 ;;
	--kernel)     need_arg "$@"; kernel=$2; shift 2 ;;
	--root)       need_arg "$@"; root=$2; shift 2 ;;
	--append)     need_arg "$@"; append=$2; shift 2 ;;
	--qemu)       need_arg "$@"; qemu_args=$2; shift 2 ;;
	-v|--verbose) verbose=1; shift ;;
	--boot)       full_boot=1; shift ;;
	--prepare)    prepare=1; shift ;;
	-h|--help)    usage; exit 0 ;;
	--)           shift; break ;;
	-*)           die "unknown option $1 (see --help)" ;;
	*)            break ;;
	esac
done
for v in "$memory" "$cpus" "$timeout"; do
	is_num "$v" || die "'$v' is not a whole number (see --help)"
done
for v in "${envs[@]+"${envs[@]}"}"; do
	case $v in [A-Za-z_]*=*) ;; *) die "--env '$v' is not NAME=VALUE" ;; esac
done

if [ "$prepare" = 0 ]; then
	[ "$#" -ge 2 ] || { usage >&2; exit "$EX_TOOL"; }
	dir=$(cd "$1" 2>/dev/null && pwd -P) || die "no such folder: $1"
	shift
	[ "$dir" != / ] || die "DIR cannot be /"
	root=$(cd "$root" 2>/dev/null && pwd -P) || die "no such folder: --root"
	# A comma would end a QEMU option value; doubling it escapes it.
	qdir=${dir//,/,,} qroot=${root//,/,,}
fi

# --------------------------------------------------------- needed programs --
missing=''
want() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
want qemu-system-x86_64 qemu-system-x86
want busybox busybox-static
want cpio cpio
want zstd zstd
want xz xz-utils
want modinfo kmod
want depmod kmod
PATH=$PATH:/usr/sbin:/sbin
if [ -n "$missing" ]; then
	missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
	die "missing programs; run: apt-get install --no-install-recommends $missing"
fi

# ------------------------------------------------------------------- cache --
cache=${HWKVM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/hwkvm}
mkdir -p "$cache" || die "cannot make the cache folder $cache"
cache=$(cd "$cache" && pwd -P)

# The modules in the initramfs; the optional ones are built into some kernels.
VIRTIO_MODULES='virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_console'
BOOT_MODULES='irqbypass kvm ccp kvm-amd fscache netfs 9pnet 9pnet_virtio 9p overlay'

pick_package() { # -> name of the versioned kernel package to download
	local meta p
	for meta in ${kernel:-linux-image-6.12-amd64 linux-image-amd64}; do
		apt-cache show "$meta" >/dev/null 2>&1 || continue
		# A meta package depends on the versioned one; else it is one.
		p=$(apt-cache depends --no-recommends --no-suggests "$meta" 2>/dev/null |
			sed -n 's/^ *|\{0,1\}Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
		echo "${p:-$meta}"
		return 0
	done
	return 1
}

unpack_vmlinux() { # BZIMAGE OUT: the uncompressed kernel out of a bzImage,
	# so that the emulated CPU need not decompress it.
	local sects off len first size
	sects=$(od -An -tu1 -j $((0x1f1)) -N 1 "$1") || return 1
	set -- "$1" "$2" $(od -An -tu4 -j $((0x248)) -N 8 "$1")
	sects=$((sects)); [ "$sects" -gt 0 ] || sects=4
	off=$(( (sects + 1) * 512 + $3 )) len=$4
	first=$(od -An -tx1 -j "$off" -N 4 "$1" | tr -d ' ')
	case $first in
	28b52ffd) set -- "$1" "$2" zstd -dcq ;;
	fd377a58) set -- "$1" "$2" xz -dcq --single-stream ;;
	02214c18) set -- "$1" "$2" lz4 -dcq ;;
	1f8b*)    set -- "$1" "$2" gzip -dcq ;;
	*) say "unknown kernel compression ($first)"; return 1 ;;
	esac
	command -v "$3" >/dev/null || { say "missing program $3"; return 1; }
	# The payload's last 4 bytes are its unpacked size, not part of the stream.
	size=$(od -An -tu4 -j $((off + len - 4)) -N 4 "$1")
	tail -c "+$((off + 1))" "$1" | head -c "$((len - 4))" | "${@:3}" >"$2" 2>/dev/null
	[ "$(stat -c %s "$2")" = "$((size))" ]
}

strip_signature() { # FILE: cuts a module's signature off, which the emulated CPU
	# would spend most of the loading time on checking.
	local n len
	n=$(stat -c %s "$1")
	[ "$n" -gt 4096 ] || return 0
	[ "$(tail -c 28 "$1")" = '~Module signature appended~' ] || return 0
	set -- "$1" $(tail -c 32 "$1" | od -An -tu1 -N 4) # its length, big endian
	len=$(( ($2 << 24) + ($3 << 16) + ($4 << 8) + $5 + 40 ))
	[ "$len" -ge "$n" ] || truncate -s "-$len" "$1"
}

write_init() { # the machine's first program: mounts, loads KVM, switches root
	cat <<'EOF'
#!/bin/busybox sh
export PATH=/bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for m in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_console; do
	[ ! -e /modules/$m.ko ] || insmod /modules/$m.ko
done
# The virtio-serial ports are named status, out and err.
n=0
while [ ! -c /dev/hwkvm.status ] || [ ! -c /dev/hwkvm.out ] || [ ! -c /dev/hwkvm.err ]; do
	for p in /sys/class/virtio-ports/vport*; do
		[ ! -e "$p/name" ] || ln -sf "${p##*/}" "/dev/hwkvm.$(cat "$p/name")"
	done
	n=$((n + 1))
	[ $n -lt 200 ] || { echo 'hwkvm: no virtio ports' >/dev/console; poweroff -f; }
	[ -c /dev/hwkvm.err ] || sleep 0.05
done
exec 9<>/dev/hwkvm.status
fail() { echo "hwkvm: $*" >/dev/console; echo "fail $*" >&9; poweroff -f; }
load() {
	m=$1; shift
	[ ! -e "/modules/$m.ko" ] || insmod "/modules/$m.ko" "$@" || fail "cannot load module $m"
}
p9() { # TAG FOLDER OPTIONS
	mkdir -p "$2"
	mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" ||
		fail "cannot mount $1 on $2"
}

for m in netfs fscache 9pnet 9pnet_virtio 9p overlay irqbypass ccp; do load $m; done
case " $(cat /proc/cmdline) " in
*' hwkvm.snapshot '*)
	# The state is saved here, once, and every run starts from it.
	load kvm; load kvm-amd
	echo ready >&9
	read -r x <&9 ;;
esac
p9 ctl /ctl ro,cache=loose
. /ctl/config
date -s "@$now" >/dev/null
cat /ctl/seed >/dev/urandom
[ -e /sys/module/kvm ] || { load kvm $kvm_args; load kvm-amd $kvm_amd_args; }
[ -c /dev/kvm ] || fail 'no /dev/kvm: does the CPU model have svm?'
chmod 666 /dev/kvm

p9 root /ro ro,cache=loose
mkdir -p /rw /new
mount -t tmpfs -o mode=755 rw /rw
mkdir -p /rw/up /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/up,workdir=/rw/work root /new ||
	fail 'cannot overlay the root file system'
mkdir -p /new/dev /new/proc /new/sys /new/tmp /new/run
mount -t tmpfs -o mode=1777 tmp /new/tmp
mount -t tmpfs -o mode=755 run /new/run
p9 dir "/new$dir" rw,cache=mmap
p9 modules "/new/lib/modules/$(uname -r)" ro,cache=loose
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -sf "/proc/self/fd/${n%%:*}" "/dev/${n#*:}"; done
ip link set lo up; hostname hwkvm
mkdir -p -m 1777 /new/run/lock
mkdir -p /new/run/hwkvm
cp -a /bin /ctl/run /stage2 /new/run/hwkvm/
echo "modules='$modules'" >/new/run/hwkvm/config
for m in dev proc sys; do mount -o move /$m /new/$m; done
exec switch_root /new /run/hwkvm/bin/busybox sh /run/hwkvm/stage2
EOF
}

write_stage2() { # still process 1, now in the final root: runs the command
	cat <<'EOF'
cd /run/hwkvm
export PATH=/run/hwkvm/bin:/usr/sbin:/usr/bin:/sbin:/bin
fail() { echo "hwkvm: $*" >/dev/console; echo "fail $*" >&9; poweroff -f; }
. ./config
# Pipes in between, so that the command may reopen /dev/stdout and the like.
mkfifo out err
cat <out >/dev/hwkvm.out 9>&- & p1=$!
cat <err >/dev/hwkvm.err 9>&- & p2=$!
exec 3>out 4>err
for m in $(echo "$modules" | tr , ' '); do
	modprobe "$m" 2>&4 || fail "cannot load module $m"
done
echo start >&9
setsid /bin/sh ./run </dev/null >&3 2>&4 3>&- 4>&- 9>&-
status=$?
exec 3>&- 4>&-
# What the command left behind may hold the pipes open: wait for 2 s at most.
n=0
while kill -0 $p1 2>/dev/null || kill -0 $p2 2>/dev/null; do
	n=$((n + 1)); [ $n -lt 40 ] || break; sleep 0.05
done
sync
echo "exit $status" >&9
poweroff -f
EOF
}

build_cache() { # PACKAGE: -> $cache/PACKAGE_VERSION/{vmlinux,initrd.cpio,modules}
	local tmp deb vm ver m f
	tmp=$(mktemp -d "$cache/.new.XXXXXX") || return 1
	newcache=$tmp
	say "downloading $1 (once; kept in $cache)"
	(cd "$tmp" && apt-get -qq download "$1" >apt.log 2>&1) || {
		cat "$tmp/apt.log" >&2
		say "cannot download $1; try 'apt-get update' first"; return 1; }
	deb=$(echo "$tmp"/*.deb)
	mkdir "$tmp/x" "$tmp/out" "$tmp/initrd"
	dpkg-deb -x "$deb" "$tmp/x" || return 1
	vm=$(echo "$tmp"/x/boot/vmlinuz-*)
	ver=${vm##*/vmlinuz-}
	unpack_vmlinux "$vm" "$tmp/out/vmlinux" || { say "cannot unpack the kernel"; return 1; }
	# Debian 12 has lib/modules, later ones usr/lib/modules.
	[ -d "$tmp/x/usr/lib/modules/$ver" ] && { mkdir -p "$tmp/x/lib"; mv "$tmp/x/usr/lib/modules" "$tmp/x/lib/"; }
	depmod -b "$tmp/x" "$ver" || return 1
	mv "$tmp/x/lib/modules/$ver" "$tmp/out/modules" || return 1

	mkdir -p "$tmp"/initrd/{bin,dev,proc,sys,modules}
	for m in $VIRTIO_MODULES $BOOT_MODULES; do
		f=$(find "$tmp/out/modules/kernel" -name "$m.ko*" | head -n 1)
		if [ -z "$f" ]; then
			case $m in virtio*|fscache|netfs|ccp) continue ;; esac # optional
			say "$1 has no module $m; take another --kernel (not a cloud one)"
			return 1
		fi
		case $f in
		*.xz)  xz -dc "$f" ;;
		*.zst) zstd -dcq "$f" ;;
		*)     cat "$f" ;;
		esac >"$tmp/initrd/modules/$m.ko" || return 1
		strip_signature "$tmp/initrd/modules/$m.ko"
	done
	f=$(command -v busybox)
	! ldd "$f" >/dev/null 2>&1 || { say "busybox is not static; apt-get install busybox-static"; return 1; }
	cp "$f" "$tmp/initrd/bin/busybox"
	for m in sh mount insmod cat cp ln mkdir mkfifo chmod switch_root setsid \
		sleep sync poweroff uname tr ip hostname date; do
		ln -s busybox "$tmp/initrd/bin/$m"
	done
	write_init >"$tmp/initrd/init"; chmod 755 "$tmp/initrd/init"
	write_stage2 >"$tmp/initrd/stage2"
	(cd "$tmp/initrd" && find . | LC_ALL=C sort | cpio -o -H newc --quiet -R 0:0) \
		>"$tmp/out/initrd.cpio" || return 1
	echo "$ver" >"$tmp/out/version"
	mv -T "$tmp/out" "$cache/$2" || return 1
	rm -rf "$tmp"
}

newcache=''
trap '[ -z "$newcache" ] || rm -rf "$newcache"' EXIT
# One entry per asked-for kernel and per edition of this script.
key=$(printf '%s\n' "$kernel" | cat - "$0" | sha256sum | cut -c1-12)
kdir=$cache/$key
if [ ! -f "$kdir/version" ]; then
	exec 8>"$cache/.lock"; flock 8 2>/dev/null || true
	if [ ! -f "$kdir/version" ]; then
		pkg=$(pick_package) || die "no kernel package ${kernel:-linux-image-amd64} in the package lists; try 'apt-get update'"
		build_cache "$pkg" "$key" || die "could not prepare the kernel"
	fi
	exec 8>&-
fi

# --------------------------------------------------------------------- run --
work=$(mktemp -d "${TMPDIR:-/tmp}/hwkvm.XXXXXX") || die "no temporary folder"
qemu_pid='' cat_pids='' newstate=''
cleanup() {
	trap - EXIT
	[ -z "$qemu_pid" ] || kill -9 "$qemu_pid" 2>/dev/null
	# shellcheck disable=SC2086
	[ -z "$cat_pids" ] || kill $cat_pids 2>/dev/null
	[ -z "$newstate" ] || rm -f "$newstate"
	rm -rf "$work"
	[ -z "$newcache" ] || rm -rf "$newcache"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# The emulated time-stamp counter is this machine's own; calibrating it can go
# wrong on a busy machine: tell its frequency (bogomips / 2 in MHz).
tsc=''
if grep -qw constant_tsc /proc/cpuinfo; then
	tsc=$(sed -n 's/^bogomips[^0-9]*\([0-9]*\)\.\([0-9][0-9]\)$/\1\2/p' /proc/cpuinfo | head -n 1)
	tsc=${tsc:+tsc_early_khz=$((tsc * 5))}
fi
cmdline="console=ttyS0 panic=-1 mitigations=off tsc=reliable nowatchdog no_timer_check init_on_alloc=0 apparmor=0 audit=0 random.trust_cpu=on cryptomgr.notests=1 $tsc"

share() { # TAG PATH [OPTIONS]
	printf -- '-fsdev\nlocal,id=%s,path=%s,security_model=none,multidevs=remap%s\n' "$1" "$2" "${3:-}"
	printf -- '-device\nvirtio-9p-pci,fsdev=%s,mount_tag=%s\n' "$1" "$1"
}

start_qemu() { # KERNEL_ARGS STDIN [QEMU_ARG...]: starts the machine; sets qemu_pid
	local append=$1 stdin=$2; shift 2
	rm -f "$work"/{status.in,status.out,out,err}
	mkfifo "$work"/{status.in,status.out,out,err}
	: >"$work/console"; : >"$work/status"
	cat "$work/out" & cat_pids=$!
	cat "$work/err" >&2 & cat_pids="$cat_pids $!"
	cat "$work/status.out" >"$work/status" & cat_pids="$cat_pids $!"
	mapfile -t shares < <(share ctl "$work/ctl" ,readonly=on; share root "${qroot:-/}" ,readonly=on
		share modules "${kdir//,/,,}/modules" ,readonly=on; share dir "${qdir:-$work/ctl}")
	HWKVM_STATE=$state qemu-system-x86_64 \
		-nodefaults -no-user-config -no-reboot -display none -name hwkvm \
		-accel tcg,thread=multi -machine q35,smm=off,sata=off,usb=off,vmport=off \
		-cpu "$cpu" -smp "$cpus" -m "$memory" \
		-kernel "$kdir/vmlinux" -initrd "$kdir/initrd.cpio" -append "$append" \
		-serial "file:$work/console" -device virtio-serial-pci \
		-chardev "pipe,id=status,path=$work/status" -device virtserialport,chardev=status,name=status \
		-chardev "file,id=out,path=$work/out" -device virtserialport,chardev=out,name=out \
		-chardev "file,id=err,path=$work/err" -device virtserialport,chardev=err,name=err \
		"${shares[@]}" "$@" <>"$stdin" >"$work/qemu.log" 2>&1 &
	qemu_pid=$!
}

stop_qemu() {
	kill -9 "$qemu_pid" 2>/dev/null; wait "$qemu_pid" 2>/dev/null; qemu_pid=''
	# shellcheck disable=SC2086
	kill $cat_pids 2>/dev/null; wait $cat_pids 2>/dev/null; cat_pids=''
}

save_state() { # boots the machine up to the point where CMD matters; saves it
	local n=0
	say "booting the machine once, to save its state"
	newstate=$state.$$
	mkfifo "$work/mon.in"
	exec 6<>"$work/mon.in"
	start_qemu "$cmdline quiet hwkvm.snapshot $append" "$work/mon.in" -monitor stdio
	until grep -q . "$work/status" || [ "$n" -ge 1200 ] || ! kill -0 "$qemu_pid" 2>/dev/null; do
		n=$((n + 1)); sleep 0.1
	done
	if grep -qx ready "$work/status"; then
		echo "migrate \"exec:zstd -1 -q -f -o \\\"\$HWKVM_STATE.$$\\\"\"" >&6
		while [ "$n" -lt 1200 ] && kill -0 "$qemu_pid" 2>/dev/null &&
			! grep -aqE 'status: (completed|failed)' "$work/qemu.log"; do
			echo 'info migrate' >&6
			n=$((n + 2)); sleep 0.2
		done
		# QEMU says so before the last of it is written: wait for a whole file.
		while grep -aq 'status: completed' "$work/qemu.log" && [ "$n" -lt 1300 ]; do
			! zstd -tq "$newstate" 2>/dev/null || { mv "$newstate" "$state"; break; }
			n=$((n + 2)); sleep 0.2
		done
	fi
	stop_qemu
	exec 6>&-
	rm -f "$newstate"; newstate=''
	if [ ! -f "$state" ]; then
		say "could not save the state; the machine will boot in full. Its last messages:"
		tail -n 5 "$work/console" "$work/status" "$work/qemu.log" >&2
		return 1
	fi
}

mkdir "$work/ctl"
state=''
if [ "$full_boot$verbose" = 00 ] && [ -z "$kvm_args$kvm_amd_args$qemu_args" ]; then
	state=$(printf '%s\n' "$memory" "$cpus" "$cpu" "$cmdline" "$append" \
		"$(qemu-system-x86_64 --version)" | sha256sum | cut -c1-12)
	state=$kdir/state.$state
	if [ ! -f "$state" ]; then
		exec 8>"$cache/.lock"; flock 8 2>/dev/null || true
		[ -f "$state" ] || save_state || state=''
		exec 8>&-
	fi
fi
[ "$prepare" = 0 ] || { say "ready: kernel $(cat "$kdir/version") in $kdir"; exit 0; }

quote() { printf "'%s' " "${1//\'/\'\\\'\'}"; }
write_ctl() {
	{
		printf 'now=%s\n' "$(date +%s)"
		printf 'dir=%s\n' "$(quote "$dir")"
		printf 'modules=%s\n' "$(quote "$modules")"
		printf 'kvm_args=%s\n' "$(quote "$kvm_args")"
		printf 'kvm_amd_args=%s\n' "$(quote "$kvm_amd_args")"
	} >"$work/ctl/config"
	head -c 64 /dev/urandom >"$work/ctl/seed"
	{
		echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
		echo 'export HOME=/root TERM=dumb LANG=C.UTF-8'
		echo 'unset OLDPWD'
		for v in "${envs[@]+"${envs[@]}"}"; do
			printf 'export %s=%s\n' "${v%%=*}" "$(quote "${v#*=}")"
		done
		printf 'cd %s || exit 125\n' "$(quote "$dir")"
		printf 'exec '; for v in "$@"; do quote "$v"; done; echo
	} >"$work/ctl/run"
}

end=$((SECONDS + timeout)) timed_out=0
run_machine() { # waits for the machine to end
	local p
	write_ctl "$@"
	if [ -n "$state" ]; then
		# shellcheck disable=SC2016
		start_qemu "$cmdline quiet hwkvm.snapshot $append" /dev/null \
			-incoming 'exec:zstd -dcq "$HWKVM_STATE"'
		# Read only once the machine runs again.
		exec 7<>"$work/status.in"; echo go >&7
	else
		[ "$verbose" = 1 ] && v='loglevel=7' || v=quiet
		# shellcheck disable=SC2086
		start_qemu "$cmdline $v $append" /dev/null $qemu_args
		if [ "$verbose" = 1 ]; then
			tail -n +1 -f "$work/console" >&2 & cat_pids="$cat_pids $!"
		fi
	fi
	if [ "$timeout" -gt 0 ]; then
		while kill -0 "$qemu_pid" 2>/dev/null; do
			[ "$SECONDS" -lt "$end" ] || { timed_out=1; kill -9 "$qemu_pid" 2>/dev/null; break; }
			sleep 0.1
		done
	fi
	wait "$qemu_pid" 2>/dev/null; qemu_pid=''
	# Let the last output through; QEMU may have died before it opened the pipes.
	# shellcheck disable=SC2086
	set -- $cat_pids
	for p in "$1" "$2" "$3"; do
		for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$p" 2>/dev/null || break; sleep 0.05; done
	done
	# shellcheck disable=SC2086
	kill $cat_pids 2>/dev/null; wait $cat_pids 2>/dev/null; cat_pids=''
}

run_machine "$@"
if [ -n "$state" ] && [ "$timed_out" = 0 ] && ! [ -s "$work/status" ]; then
	say "cannot start from the saved state; booting in full"
	tail -n 3 "$work/qemu.log" >&2
	rm -f "$state"; state=''
	run_machine "$@"
fi

if [ "$timed_out" = 1 ]; then
	say "killed after $timeout s"
	exit "$EX_TIMEOUT"
fi
value=$(sed -n 's/^exit \([0-9][0-9]*\)$/\1/p' "$work/status" | tail -n 1)
[ -z "$value" ] || exit "$value"
say "the machine ended without an exit status: $(tail -n 1 "$work/status")"
tail -n 5 "$work/qemu.log" >&2
[ "$verbose" = 1 ] || tail -n 30 "$work/console" >&2
exit "$EX_TOOL"
