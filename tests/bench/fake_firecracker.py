#!/usr/bin/python3 -SI
# SPDX-License-Identifier: Apache-2.0
"""Stands for Firecracker in test_peers.py: its API on a Unix socket, its vsock handshake, and behind that a guest
that adds. The environment says what goes wrong: FAKE_REFUSE=PATH of the API, FAKE_WRONG=1 (sums), FAKE_DIE=1 (when a
snapshot is loaded), FAKE_HANG=FILE (made, then no answer to a load). FAKE_LOG=FILE takes a line for each request."""
from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import threading
import time
from pathlib import Path

REFUSED = b'HTTP/1.1 400 \r\nContent-Length: 31\r\n\r\n{"fault_message":"not today..."}'


def frame(kind: int, payload: dict) -> bytes:
    text = json.dumps(payload).encode()
    return struct.pack("<IB", len(text), kind) + text


def answer(code: str) -> bytes:
    found = re.match(r"(\d+)\+(\d+)", code)
    total = sum(map(int, found.groups())) + ("FAKE_WRONG" in os.environ) if found else 0
    return frame(0x14, {"kind": "result", "data": {"text/plain": str(total)}, "metadata": {}}) \
        + frame(0x10, {"status": "ok", "execution_count": 1, "error": None})


def guest(sock: socket.socket) -> None:
    file = sock.makefile("rwb")
    line = file.readline()
    if line != b"CONNECT 2000\n":
        return
    file.write(b"OK 1073741824\n")
    file.flush()
    while head := file.read(5):
        request = json.loads(file.read(struct.unpack("<IB", head)[0]))
        file.write(answer(request["code"]))
        file.flush()


def serve_vsock() -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("v.sock")
    listener.listen()
    threading.Thread(target=lambda: [guest(listener.accept()[0]) for _ in iter(int, 1)], daemon=True).start()


def act(method: str, path: str, body: dict) -> None:
    if path == "/actions":
        serve_vsock()
        print("thawbox: phase import numpy\nthawbox: ready", flush=True)
    elif path == "/snapshot/create":
        Path(body["mem_file_path"]).write_bytes(b"m" * 8192)
        Path(body["snapshot_path"]).write_bytes(b"s")
    elif path == "/snapshot/load":
        if "FAKE_HANG" in os.environ:
            Path(os.environ["FAKE_HANG"]).touch()
            time.sleep(600)
        if "FAKE_DIE" in os.environ:
            print("out of cheese", flush=True)
            os._exit(3)
        assert Path(body["snapshot_path"]).read_bytes() == b"s" and body["resume_vm"]
        assert len(Path(body["mem_backend"]["backend_path"]).read_bytes()) == 8192
        assert Path("scratch.img").stat().st_size and Path("root.img").read_bytes() == b"root"
        serve_vsock()


def api(sock: socket.socket) -> None:
    file = sock.makefile("rwb")
    while line := file.readline():
        method, path, _ = line.decode().split()
        length = 0
        while (field := file.readline().strip()):
            name, _, value = field.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = json.loads(file.read(length))
        with open(os.environ["FAKE_LOG"], "a") as log:
            log.write(f"{method} {path} {json.dumps(body, sort_keys=True)}\n")
        if path == os.environ.get("FAKE_REFUSE"):
            file.write(REFUSED)
        else:
            act(method, path, body)
            file.write(b"HTTP/1.1 204 \r\nServer: fake\r\nConnection: keep-alive\r\n\r\n")
        file.flush()


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print("Fakecracker v0")
        return
    assert sys.argv[1:] == ["--api-sock", "api.sock"]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("api.sock")
    listener.listen()
    while True:
        threading.Thread(target=api, args=listener.accept()[:1], daemon=True).start()


main()
