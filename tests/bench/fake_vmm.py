# SPDX-License-Identifier: Apache-2.0
"""Plays thawbox-vmm for the benchmarks' tests: takes `thaw` and `resume`, evaluates sums itself.

FAKE_VMM says what it does wrong: `wrong-sum`, `leave-file`, `leave-process`, `die`, `refuse`, `crash` (the guest, in
its cell), `hang`; `wrong-fifth` (one cell in five) and `hang-later` (no answer after 50 cells) count cells in the
folder FAKE_COUNT.
"""
import json
import os
import select
import socket
import struct
import sys
import tempfile

WRONG = os.environ.get("FAKE_VMM", "")


def cells_so_far() -> int:
    folder = os.environ["FAKE_COUNT"]
    os.close(tempfile.mkstemp(dir=folder)[0])
    return len(os.listdir(folder))


def answer(stream: socket.socket, control: socket.socket) -> None:
    length, _ = struct.unpack("<IB", stream.recv(5, socket.MSG_WAITALL))
    code = json.loads(stream.recv(length, socket.MSG_WAITALL))["code"]
    if WRONG == "hang" or (WRONG == "hang-later" and cells_so_far() > 50):
        return
    if WRONG == "crash":
        control.sendall(b'{"event":"exit","reason":"guest-panic","detail":"as it was told"}\n')
        sys.exit()
    value = eval(code) + (WRONG == "wrong-sum" or (WRONG == "wrong-fifth" and cells_so_far() % 5 == 0))
    for kind, payload in ((0x14, {"kind": "result", "data": {"text/plain": str(value)}}), (0x10, {"status": "ok"})):
        data = json.dumps(payload).encode()
        stream.sendall(struct.pack("<IB", len(data), kind) + data)


def misbehave(folder: str) -> None:
    if WRONG == "leave-file":
        os.close(tempfile.mkstemp(dir=folder)[0])
    if WRONG == "leave-process" and os.fork() == 0:
        os.closerange(0, 100)
        os.execlp("sleep", "sleep", "300")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[sys.argv.index("--control-fd") + 1]))
    line, fds, _, _ = socket.recv_fds(control, 65536, 1)
    thaw = json.loads(line)
    if WRONG == "die":
        sys.exit("fake: no such luck")
    if WRONG == "refuse":
        control.sendall(b'{"ok":false,"error":"not today","remedy":"come back tomorrow","code":"EBUSY"}\n')
        return
    misbehave(thaw["overlay_dir"])
    stream = socket.socket(fileno=fds[0])
    control.sendall(b'{"ok":true}\n')
    while thaw.get("paused"):
        thaw["paused"] = json.loads(control.recv(65536))["cmd"] != "resume"
        control.sendall(b'{"ok":true}\n')
    open_ = [control, stream]
    while control in open_:
        for each in select.select(open_, [], [])[0]:
            if not each.recv(1, socket.MSG_PEEK):
                open_.remove(each)
            elif each is stream:
                answer(stream, control)


main()
