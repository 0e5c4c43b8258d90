#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Plays thawbox-vmm for a bake: a machine that is ready at once and answers the trial runs, of as many bytes as asked for.

Everything around it is real: files, locks, checksums, renames, full disks. $FAKE_MONITOR, words with blanks between:
	memory=KIB      size of the memory that it writes (64)
	refuse=COMMAND  refuses that command
	die=COMMAND     ends when that command comes
	wait=FILE       goes on with a snapshot when there is such a file, and makes FILE.here meanwhile
Each start as a machine adds a line to $FAKE_MONITOR_LOG.
"""
import json
import os
import re
import select
import socket
import struct
import sys
import time

RESULT, STDOUT, DISPLAY = 0x10, 0x11, 0x14
WORDS = dict(word.split("=", 1) for word in os.environ.get("FAKE_MONITOR", "").split())


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


def answer_cell(stream: socket.socket) -> None:
    """The cells that a bake tries: a sum, and with it a line of random bytes and the time."""
    length, _ = struct.unpack("<IB", stream.recv(5, socket.MSG_WAITALL))
    request = json.loads(stream.recv(length, socket.MSG_WAITALL))
    if request["op"] == "usage":
        stream.sendall(frame(RESULT, b'{"wall_ms":1}'))
        return
    out = b""
    if "urandom" in request["code"]:
        out += frame(STDOUT, f"{os.urandom(16).hex()} {time.time()!r}\n".encode())
    value = eval(re.findall(r"^\d+ ?\+ ?\d+$", request["code"], re.M)[-1])
    out += frame(DISPLAY, json.dumps({"kind": "result", "data": {"text/plain": str(value)}, "metadata": {}}).encode())
    stream.sendall(out + frame(RESULT, b'{"status":"ok","execution_count":1,"error":null,"cut":{"stdout":0,"stderr":0}}'))


class Monitor:
    def __init__(self, control: socket.socket):
        self.control, self.stream = control, None

    def say(self, **members) -> None:
        self.control.sendall(json.dumps(members).encode() + b"\n")

    def boot(self, line, fds):
        self.say(ok=True)
        if fds:
            with socket.socket(fileno=fds[0]) as console:
                console.sendall(b"thawbox: phase imports\n")
        self.say(event="parked")

    def thaw(self, line, fds):
        self.stream = socket.socket(fileno=fds[0])
        self.say(ok=True, port=2000, agent_port=1024, create_ms=1.0)
        answer_cell(self.stream)
        self.say(event="first-done")

    def standby(self, line, fds):
        self.say(ok=True)
        self.say(event="standby")

    def connect(self, line, fds):
        """The agent, which is asked whether the interpreter lives when a cell takes its time, as on a busy host."""
        self.say(ok=True)
        with socket.socket(fileno=fds[0]) as agent:
            length, _ = struct.unpack("<IB", agent.recv(5, socket.MSG_WAITALL))
            agent.recv(length, socket.MSG_WAITALL)
            agent.sendall(frame(RESULT, b'{"status":"ok","alive":true}'))

    def parts(self, line, fds):
        self.say(ok=True, parts=["state", "memory"])

    def snapshot(self, line, fds):
        if "wait" in WORDS:
            open(WORDS["wait"] + ".here", "w").close()
            while not os.path.exists(WORDS["wait"]):
                if select.select([self.control], [], [], 0.01)[0] and not self.control.recv(1, socket.MSG_PEEK):
                    sys.exit("fake: nobody is there any more")
        self.fill(fds[0], b"state" * 100)
        self.fill(fds[1], os.urandom(1024) * int(WORDS.get("memory", 64)))

    def workset(self, line, fds):
        self.fill(fds[0], b"workset" * 100)

    def fill(self, fd: int, data: bytes) -> None:
        try:
            at = 0
            while at < len(data):
                at += os.pwrite(fd, data[at:], at)
            os.fsync(fd)
        except OSError as error:
            self.say(ok=False, error=f"snapshot: {error.strerror}", remedy="free some disk space", code="ENOSPC")
            raise

    def serve(self) -> None:
        waiting = b""
        while True:
            if self.stream and self.stream in select.select([self.control, self.stream], [], [])[0]:
                if not self.stream.recv(1, socket.MSG_PEEK):
                    self.stream = None
                else:
                    answer_cell(self.stream)
                continue
            data, fds, _, _ = socket.recv_fds(self.control, 65536, 10)
            if not data:
                return
            *lines, waiting = (waiting + data).split(b"\n")
            for text in lines:
                line = json.loads(text)
                command = line["cmd"]
                if WORDS.get("die") == command:
                    sys.exit("fake: told to die")
                if WORDS.get("refuse") == command:
                    self.say(ok=False, error=f"{command}: told to refuse", remedy="tell me otherwise")
                    continue
                try:
                    getattr(self, command)(line, fds)
                except OSError:
                    continue
                if command in ("snapshot", "workset"):
                    self.say(ok=True)


def main() -> None:
    if sys.argv[1:] in (["--version"], ["--fingerprint"]):
        print("fake 1")
        return
    with open(os.environ["FAKE_MONITOR_LOG"], "a") as log:
        log.write(f"{os.getpid()}\n")
    Monitor(socket.socket(fileno=int(sys.argv[sys.argv.index("--control-fd") + 1]))).serve()


main()
