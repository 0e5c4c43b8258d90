# SPDX-License-Identifier: Apache-2.0
"""A web server that test_ports.py starts in a sandbox: python3 server.py PORT."""
import hashlib
import http.server
import json
import socketserver
import sys
import threading
import time

go_on = threading.Event()
left = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        what = (self.path.split("?")[0] + "/").split("/")[1]
        getattr(self, "get_" + what, self.get_echo)()

    do_HEAD = do_DELETE = do_OPTIONS = do_GET

    def get_echo(self) -> None:
        """The request itself."""
        text = json.dumps({"line": self.requestline, "headers": self.headers.items()})
        self.answer(text.encode(), Content_Type="application/json", Set_Cookie="a=b", Connection="close, X-Hop", X_Hop="1")

    def get_stream(self) -> None:
        """One chunk, and the next when somebody asks /go."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.wfile.flush()
        go_on.wait(100)
        self.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")

    def get_go(self) -> None:
        go_on.set()
        self.answer(b"")

    def get_old(self) -> None:
        """A body without a length."""
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"o" * 100000)
        self.close_connection = True

    def get_none(self) -> None:
        self.send_response(204)
        self.end_headers()

    def get_rude(self) -> None:
        self.wfile.write(b"220 mail.example ESMTP\r\n\r\n")
        self.close_connection = True

    def get_broken(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        self.close_connection = True

    def get_endless(self) -> None:
        """Until the client has gone."""
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"e" * 65536)
        except OSError:
            left.set()
        self.close_connection = True

    def get_left(self) -> None:
        left.wait(100)
        self.answer(b"left" if left.is_set() else b"there")

    def get_ws(self) -> None:
        """An upgrade to a protocol that says back what it hears."""
        self.send_response(101)
        self.send_header("Upgrade", self.headers["Upgrade"])
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", "for you")
        self.end_headers()
        self.wfile.write(b"hello")
        self.wfile.flush()
        while piece := self.rfile.read1(65536):
            self.wfile.write(piece)
        self.wfile.write(b"bye")
        self.close_connection = True

    def body(self):
        if self.headers["Transfer-Encoding"] != "chunked":
            yield self.rfile.read(int(self.headers["Content-Length"] or 0))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def do_POST(self) -> None:
        if self.path == "/refuse":  # without a look at the body
            self.answer(b"too much", 413, Connection="close")
            self.close_connection = True
            return
        if self.path == "/slow":
            time.sleep(2)
        total, digest = 0, hashlib.sha256()
        for piece in self.body():
            total += len(piece)
            digest.update(piece)
        self.answer(json.dumps({"length": total, "sha256": digest.hexdigest(), "headers": self.headers.items()}).encode())

    do_PUT = do_POST


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


print("ready", flush=True)
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
