# SPDX-License-Identifier: Apache-2.0
"""Which files a cell has made or changed: for requests that ask for it.

Found by a look at the times of change (ctime, which nobody can set back) of what lies in the working directory,
the home and the temporary folder. Not seen: what was removed, other folders, hidden folders and those of byte code
(caches, settings, packages), and what lies behind the first LOOKED_MAX entries. What commands, other contexts and
threads change meanwhile is seen as the cell's, and so is what changed in the clock's tick before its start."""
from __future__ import annotations

import os
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterator

from thawbox_mime import clean

CLOCK_REALTIME_COARSE = 5
"""The clock of which files get their times (clock_gettime(2))."""
LOOKED_MAX = 4096
"""Entries of folders that are looked at."""
FOUND_MAX = 256
"""Files that are told."""


def mark() -> int:
    """Returns the time of what changes from now on, in ns."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)


def roots() -> Iterator[str]:
    """Yields the folders that are looked into."""
    try:
        cwd = os.getcwd()
    except OSError:  # it has been removed
        cwd = "/"
    if cwd != "/":
        yield cwd
    yield os.path.expanduser("~")
    yield tempfile.gettempdir()


def entries() -> Iterator[os.DirEntry[str]]:
    """Yields what lies in these folders and those below, near things first."""
    folders = deque(dict.fromkeys(roots()))
    seen = set(folders)
    while folders:
        try:
            with os.scandir(folders.popleft()) as found:
                for entry in found:
                    yield entry
                    if entry.name[0] != "." and entry.name != "__pycache__" \
                            and entry.path not in seen and entry.is_dir(follow_symlinks=False):
                        seen.add(entry.path)
                        folders.append(entry.path)
        except OSError:
            continue  # it is gone, or not ours to read


def changed(since_ns: int) -> tuple[list[dict[str, str | int]], int]:
    """Returns the files that were made or changed since then, and how many more there are (at least 1 when the
    look ended early)."""
    found: dict[str, int] = {}
    more = 0
    for looked, entry in enumerate(entries()):
        if looked == LOOKED_MAX:
            more += 1
            break
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if about.st_ctime_ns < since_ns or not stat.S_ISREG(about.st_mode):
            continue
        if len(found) < FOUND_MAX:
            found[clean_path(entry.path)] = about.st_size
        else:
            more += 1
    return [{"path": path, "size": size} for path, size in sorted(found.items())], more


def clean_path(path: str) -> str:
    """Returns a path as JSON can carry it: bytes that are no UTF-8 become backslash escapes."""
    return clean(os.fsencode(path).decode("utf-8", "backslashreplace"))
