#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# base.sh TREE: installs Debian and the packages into the directory TREE: the slow stage of build.sh
# (minutes). Its result depends on this file, customize.sh, packages.txt and the lists
# TB_APT_PACKAGES and TB_PIP_PACKAGES only; with the latter on pip.sh too, on the file TB_PIP_LOCK and, where
# that is empty, on what the index and the folder TB_PIP_WHEELS, if there is one, have. Messages go to standard error.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=$1
suite=bookworm
mirror=${TB_DEBIAN_MIRROR:-http://deb.debian.org}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 0755 "$tmp"

# What these packages depend on is 700 MiB more than they use: scipy on a C++ compiler with Boost,
# fonttools on the Unicode tables as text, matplotlib on Tk with X11, IPython on jedi (which the
# interpreter kernel turns off), git on all of Perl for a few rare subcommands (perl-base stays).
# So an empty package stands in for them. `apt install perl` still gets the real one.
make_stand_in() {
	mkdir -p "$tmp/stand-in/DEBIAN"
	cat > "$tmp/stand-in/DEBIAN/control" <<-'CONTROL'
		Package: thawbox-stand-in
		Version: 1
		Architecture: all
		Maintainer: thawbox
		Provides: python3-pythran (= 0.11.0), unicode-data (= 15.0.0), python3-tk (= 3.11.2-3),
		 libjs-jquery, libjs-jquery-ui, python3-jedi (= 0.18.2), perl (= 5.36.0-7),
		 liberror-perl
		Description: stands in for packages that the sandbox does not use
	CONTROL
	dpkg-deb --build --root-owner-group "$tmp/stand-in" "$tmp/stand-in.deb" > /dev/null
	{
		dpkg-deb -f "$tmp/stand-in.deb"
		echo "Filename: ./stand-in.deb"
		echo "Size: $(stat -c %s "$tmp/stand-in.deb")"
		echo "SHA256: $(sha256sum < "$tmp/stand-in.deb" | cut -d' ' -f1)"
	} > "$tmp/Packages"
}

# What pip.sh reads, where the hook can read it: it may be of another user.
gather_for_pip() {
	export TB_PIP_DIR=$tmp/pip
	mkdir -p "$TB_PIP_DIR/wheels"
	[ -z "${TB_PIP_LOCK:-}" ] || cp --no-preserve=mode "$TB_PIP_LOCK" "$TB_PIP_DIR/pip.lock"
	[ ! -d "${TB_PIP_WHEELS:-}" ] || find "$TB_PIP_WHEELS" -maxdepth 1 -name '*.whl' \
		-exec cp --no-preserve=mode -t "$TB_PIP_DIR/wheels" {} +
}

include=$({ sed 's/#.*//' "$here/packages.txt"; echo "${TB_APT_PACKAGES:-}"; } |
	tr -s ' \n' '\n\n' | sed '/^$/d' | sort -u | paste -sd, -)
make_stand_in
gather_for_pip

# Nodes of /dev cannot be made without root, and the guest mounts its own. By way of tar, so that
# one form serves root and user name spaces.
mmdebstrap --mode=auto --variant=minbase --include="thawbox-stand-in,$include" \
	--aptopt='Apt::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/info/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
	--customize-hook="$here/customize.sh" \
	"$suite" - \
	"deb $mirror/debian $suite main" \
	"deb $mirror/debian $suite-updates main" \
	"deb $mirror/debian-security $suite-security main" \
	"deb [trusted=yes] copy:$tmp ./" |
	${TB_AS_ROOT:-} tar -x -p --numeric-owner --exclude='./dev/*' \
		--xattrs --xattrs-include='*' -C "$tree" -f -
