# SPDX-License-Identifier: Apache-2.0
"""What a measurement must say of its host, and the page cache of the files it reads: bench/host.c for Python."""
from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

PAGE = mmap.PAGESIZE
DROP_TRIES = 40
"""The process of the run before may still be on its way out, and holds what it has mapped: times 50 ms."""
BIT_0 = bytes(value & 1 for value in range(256))
"""What mincore() defines of each byte."""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
MAP_FAILED = ctypes.c_void_p(-1).value


def cpu_model() -> str:
    """The processor's name, "unknown CPU" where /proc/cpuinfo has none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown CPU"


def kvm_kind() -> str:
    """Which KVM this host has."""
    for module, kind in (("kvm_pvm", "software KVM (kvm_pvm)"), ("kvm_intel", "kvm_intel"), ("kvm_amd", "kvm_amd")):
        if os.path.exists(f"/sys/module/{module}"):
            return kind
    return "unknown KVM"


def host_line() -> str:
    """One line: processor, how many, kernel, kind of KVM, load of the last minute."""
    return (f"{cpu_model()}, {os.cpu_count()} CPUs, Linux {os.uname().release}, {kvm_kind()}, "
            f"load {os.getloadavg()[0]:.1f}")


def resident(paths: Iterable[Path]) -> tuple[int, int]:
    """How many bytes of these files are in the page cache, and how many they have on disk.

    Holes never become resident by themselves, so the second is the honest total. Raises OSError.
    """
    cached = total = 0
    for path in paths:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            total += status.st_blocks * 512
            cached += file_resident(file.fileno(), status.st_size, str(path))
    return cached, total


def file_resident(fd: int, size: int, path: str) -> int:
    """Bytes of one file's first `size` bytes that are in the page cache. Raises OSError."""
    if not size:
        return 0
    seen = ctypes.create_string_buffer((size + PAGE - 1) // PAGE)
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at == MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    error = ctypes.get_errno() if libc.mincore(at, size, seen) else 0
    libc.munmap(at, size)
    if error:
        raise OSError(error, os.strerror(error), path)
    return seen.raw.translate(BIT_0).count(1) * PAGE


def drop(paths: Iterable[Path]) -> None:
    """Takes these files out of the page cache; as root all that no process has mapped, programs included.

    Raises OSError, EBUSY among them: more than a hundredth stayed, as somebody holds it.
    """
    files = list(paths)
    for _ in range(DROP_TRIES):
        for path in files:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if os.geteuid() == 0:
            Path("/proc/sys/vm/drop_caches").write_text("1")
        cached, total = resident(files)
        if cached <= total // 100:
            return
        time.sleep(0.05)
    raise OSError(errno.EBUSY, f"{cached >> 10} of {total >> 10} KiB stay in the page cache; does something run "
                               "from it?", str(files[0]))
