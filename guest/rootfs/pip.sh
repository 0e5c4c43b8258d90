#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pip.sh ROOT DIR PACKAGE...: installs PACKAGEs (words as in packages.pip of a template.json) and what they need
# into the root tree ROOT, for its Python, by its pip, beside what Debian's packages give. Wheels only: no build script of
# a package runs here. DIR/pip.lock says which wheels, by hash; where it is missing they are chosen now, the newest
# that fit. Wheels in the folder DIR/wheels are taken as well as those of the index. Leaves ROOT/etc/thawbox/pip.lock.
# From the environment: proxies, and pip's own variables for its index and certificates. Messages go to standard
# error; a line that begins with "note: " is for the user also when all went well.
set -euo pipefail
umask 022

root=$1
dir=$2
shift 2
work=$root/tmp/pip # in the tree: pip sees nothing else
lock=$work/pip.lock
list=$*

die() { printf 'rootfs: error: %s\n        remedy: %s\n' "$1" "$2" >&2; exit 1; }

# Other variables of the host's pip would change what is chosen, or name files that the tree does not have.
clean_environment() {
	local name keep=' PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_NO_INDEX PIP_TRUSTED_HOST PIP_PROXY PIP_DEFAULT_TIMEOUT
		PIP_RETRIES http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY '
	for name in $(compgen -e); do
		[[ $keep =~ [[:space:]]${name}[[:space:]] ]] || unset "$name" 2> /dev/null || true
	done
	export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp/pip LC_ALL=C.UTF-8
	export PIP_CERT=/tmp/pip/certificates REQUESTS_CA_BUNDLE=/tmp/pip/certificates
}

# The host's certificates: the way to PyPI is the host's, be it through a proxy with one of its own.
prepare() {
	local certs=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
	[ -r "$certs" ] || certs=$root/etc/ssl/certs/ca-certificates.crt
	mkdir "$work"
	cp "$certs" "$work/certificates"
	[ ! -e "$dir/pip.lock" ] || cp "$dir/pip.lock" "$lock"
	cp -r "$dir/wheels" "$work"
}

# A root image is one environment: Debian's guard against mixing pip and apt is moot in it. Byte code is made
# later, for all. What one call has downloaded the next one finds in the cache.
pip_install() {
	chroot "$root" python3 -m pip --disable-pip-version-check --no-input --cache-dir /tmp/pip/cache install \
		--break-system-packages --root-user-action=ignore --progress-bar off --no-compile --only-binary :all: \
		"$@" 2> "$work/errors" || { cat "$work/errors" >&2; return 1; }
	cat "$work/errors" >&2
}

# What pip has said, as an error with its remedy.
explain_choice() {
	local python wanted name versions
	python=$(chroot "$root" python3 -c 'import platform; print("Python %s.%s" % platform.python_version_tuple()[:2])')
	wanted=$(sed -n 's/^ERROR: No matching distribution found for //p' "$work/errors" | head -n 1)
	versions=$(sed -n 's/^ERROR: Could not find a version .*(from versions: \(.*\))$/\1/p' "$work/errors" | head -n 1)
	name=${wanted%%[!A-Za-z0-9._-]*}
	[ -n "$wanted" ] || die "pip cannot choose versions of: $list" \
		'see its messages above; ask for versions that agree with one another, or reach the index (PIP_INDEX_URL, PIP_CERT, https_proxy)'
	if [ "$versions" = none ] && ! chroot "$root" python3 -m pip --disable-pip-version-check --no-input \
		--cache-dir /tmp/pip/cache index versions --no-binary :all: "$name" > /dev/null 2>&1; then
		die "pip finds nothing of the name $name" \
			'check the name, and the way to the index: PIP_INDEX_URL, PIP_CERT, https_proxy'
	fi
	die "there is no wheel of $wanted for $python on x86-64 Linux, and sources are not built here (versions with a wheel: $versions)" \
		"ask for a version that has one, take Debian's package (packages.apt), or put a wheel that you have built into wheels/ beside template.json: pip wheel --no-deps -w wheels '${wanted%% *}' with $python"
}

# pip's report of what it would install, as a lock; and a note for what hides a package of Debian's.
write_lock() {
	chroot "$root" python3 - "$list" <<'PY'
import importlib.metadata, json, re, sys

with open("/tmp/pip/report.json", encoding="utf-8") as f:
    report = json.load(f)
lines = []
for item in report["install"]:
    name, version = re.sub("[-_.]+", "-", item["metadata"]["name"]).lower(), item["metadata"]["version"]
    kind, _, digest = item["download_info"]["archive_info"].get("hash", "").partition("=")
    if kind not in ("sha256", "sha384", "sha512"):
        sys.exit(f"rootfs: error: the index gives no SHA-256 of {name} {version}\n"
                 "        remedy: take an index that does (PIP_INDEX_URL), or put the wheel into wheels/ beside template.json")
    lines.append(f"{name}=={version} --hash={kind}:{digest}\n")
    try:
        debian = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    print(f"note: {name} {version} of pip takes the place of Debian's {debian}, which other packages were built with", file=sys.stderr)
with open("/tmp/pip/pip.lock", "w", encoding="utf-8") as f:
    f.write("# What pip adds to the root image of this template, chosen when it was first built. Keep it beside template.json:\n"
            "# as long as the list there is the one below, the image gets these very files. To choose anew, remove this file.\n"
            f"# of: {sys.argv[1]}\n")
    f.writelines(sorted(lines))
PY
}

choose() {
	pip_install --find-links /tmp/pip/wheels --dry-run --report /tmp/pip/report.json -- "$@" || explain_choice
	write_lock
}

install_lock() {
	local renew="or remove pip.lock beside template.json: then versions are chosen anew"
	grep -q '^[^#]' "$lock" || return 0 # Debian's packages have it all
	pip_install --find-links /tmp/pip/wheels --require-hashes --no-deps -r /tmp/pip/pip.lock && return
	if grep -q 'DO NOT MATCH THE HASHES' "$work/errors"; then
		die 'a wheel is not the one that pip.lock has the hash of (see above): it was changed where it comes from' \
			"find out why before you trust it; take it from another index (PIP_INDEX_URL), $renew"
	fi
	die 'pip cannot install what pip.lock names (see above)' \
		"reach an index that still has it (PIP_INDEX_URL, PIP_CERT, https_proxy), or put it into wheels/ beside template.json, $renew"
}

trap 'rm -rf "$work"' EXIT
prepare
clean_environment
[ -e "$lock" ] || choose "$@"
install_lock
# All that the list needs is there now, and in versions that fit: nothing is left to look for.
pip_install --quiet --dry-run --no-index -- "$@" ||
	die "what is installed by pip.lock, beside Debian's packages, does not give all of: $list" \
		'remove pip.lock beside template.json: then versions are chosen anew'
install -D -m 0644 "$lock" "$root/etc/thawbox/pip.lock"
