#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packages.sh PACKAGE...: installs those that are missing; changes nothing when none is.
set -eu

missing=
for p in "$@"; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true) in
    installed) ;;
    *) missing="$missing $p" ;;
    esac
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "packages: missing:$missing" >&2
    echo "packages: this is no Debian system; install what corresponds to these Debian 12 packages" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "packages: missing:$missing" >&2
    echo "packages: run as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "packages: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
apt-get -qq update >/dev/null &&
    apt-get -qq install -y --no-install-recommends $missing >/dev/null || {
    echo "packages: apt-get failed; is the package mirror reachable? (apt-get update)" >&2
    exit 1
}
