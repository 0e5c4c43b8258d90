# SPDX-License-Identifier: Apache-2.0
"""The interpreter kernel of a guest that another monitor runs: bench/peers.py lays this over kernel.py.

All is thawbox's own, and as warm: imports, warm-up, the default kernel's own warm-up and rehearsals. But there is no
doorbell, so it does not park: it waits for a request on its stream, vsock or else a virtio port.
"""
from __future__ import annotations

import faulthandler
import gc
import glob
import os
import socket
import sys
import time

import _thawbox
import thawbox_parent
import thawbox_server
from thawbox_server import Reader

MAILBOX_BYTES = 32 * 4096


class Port:
    """A virtio port in the place of a connected socket."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # Frames are written by send(), which ports do not know: they pass through a pair of sockets.
        self.written, self._read = socket.socketpair()

    def recv(self, size: int) -> bytes:
        """Waits for bytes. Nothing at all means that the host has not connected yet."""
        while not (data := os.read(self._fd, size)):
            time.sleep(0.01)
        return data

    def forward(self) -> None:
        """Passes on what was written; an answer has to fit into the sockets' buffer (200 KiB)."""
        data = memoryview(self._read.recv(1 << 20))
        while data:
            data = data[os.write(self._fd, data):]


class PeerKernel(thawbox_server.Kernel):
    """The default kernel, without a freeze point. Its first request is answered as ours is: what the usage of a
    first cell is compared with was noted before it came."""

    port: Port | None = None

    def freeze(self, code: str, warm_up: object) -> None:
        gc.collect()
        gc.freeze()
        self.rehearse(code)

    def serve(self, listener: socket.socket, on_first: object = None) -> None:
        if self.port:
            _thawbox.attach(self.port.written.fileno())
            reader = Reader(self.port)  # type: ignore[arg-type]
            while True:
                self.usage.begin()
                self.first_of(reader)
                self.port.forward()
                self.shell.forget()
        while True:
            self.usage.begin()
            conn, _ = listener.accept()
            with conn:
                _thawbox.attach(conn.fileno())
                reader = Reader(conn)
                if self.first_of(reader):
                    self.serve_stream(reader)
                _thawbox.attach(-1)
            self.shell.forget()

    def first_of(self, reader: Reader) -> bool:
        """Answers one request as a first one; False when the stream ends before it."""
        got = reader.payload()
        self.generators.reseed(os.urandom(thawbox_server.ENTROPY))
        if got:
            self.answer(*got, True)
        return got is not None


def open_mailbox(kind: str, port: int) -> None:
    """Makes the mailbox that rehearsals use, with nobody behind its registers; opens the virtio port as root."""
    memory = os.memfd_create("mailbox")
    os.ftruncate(memory, MAILBOX_BYTES)
    _thawbox.open_fake(memory, os.open("/dev/null", os.O_WRONLY), os.open("/dev/zero", os.O_RDONLY), port)
    ports = glob.glob("/dev/vport*")
    PeerKernel.port = Port(ports[0]) if ports else None


thawbox_server.Kernel = PeerKernel  # type: ignore[misc]
thawbox_server.open_doorbell = open_mailbox

faulthandler.enable()
sys.exit(thawbox_parent.main([*sys.argv[1:], "--spares", "0"]))
