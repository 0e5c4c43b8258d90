# SPDX-License-Identifier: Apache-2.0
"""How the daemon is found and reached: TLS, a socket that was handed over, an installation."""
import json
import os
import signal
import socket
import ssl
import subprocess
import sys

import httpx
import pytest
from conftest import BIN, GUARD_S, KEY, ROOT, Daemon
from e2b_code_interpreter import Sandbox

PROGRAM = """
from e2b_code_interpreter import Sandbox
box = Sandbox.create()
box.files.write("a", "b")
print(box.run_code("open('a').read() * 2").text)
assert box.kill()
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """An authority, and a certificate of it with its key: a client takes no authority for a server."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for args in (["req", "-x509", *new, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca.pem"],
                 ["req", *new, "-subj", "/CN=thawbox", "-keyout", "key.pem", "-out", "request.pem"],
                 ["x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2",
                  "-extfile", "ext", "-out", "cert.pem"]):
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem", folder / "ca.pem"


def test_tls(start, certificate):
    cert, key, authority = certificate
    daemon = start("--tls-cert", str(cert), "--tls-key", str(key))
    assert daemon.url.startswith("https://")
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "SSL_CERT_FILE": str(authority)}, text=True,
                          capture_output=True, timeout=GUARD_S)
    assert done.stdout == "bb\n", done.stderr
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(daemon.url + "/health")
    with socket.create_connection(daemon.url.removeprefix("https://").rsplit(":", 1)) as plain:
        plain.settimeout(GUARD_S)
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    trust = ssl.create_default_context(cafile=str(authority))
    assert httpx.get(daemon.url + "/health", verify=trust).text == "OK\n", "and it goes on"


@pytest.mark.parametrize("args, words", [
    (["--tls-cert", "CERT"], "go together"), (["--tls-cert", "CERT", "--tls-key", "CERT"], "are --tls-cert and --tls-key in PEM"),
    (["--tls-cert", "CERT", "--tls-key", "/nonesuch"], "/nonesuch")])
def test_tls_that_cannot_be(start, certificate, args, words):
    daemon = start(*(str(certificate[0]) if arg == "CERT" else arg for arg in args), wait=False)
    assert daemon.process.wait(GUARD_S) in (2, 3) and words in daemon.text()


def test_socket_that_was_handed_over(start):
    """As by systemd's socket unit: it is served, and stays open when the daemon has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        daemon = start(fds=(listening.fileno(),), env={"LISTEN_FDNAMES": "thawboxd.socket"})
        assert daemon.url == f"http://127.0.0.1:{port}"
        box = Sandbox.create()
        assert box.run_code("1 + 1").text == "2"
        monitors = [pid for pid, line in daemon.processes() if "thawbox-vmm" in line]
        environs = [open(f"/proc/{pid}/environ").read() for pid in monitors]
        assert environs and not any("LISTEN_" in text for text in environs), "it is not for its children"
        box.kill()
        assert daemon.stop() == 0
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_unix_socket(tmp_path):
    daemon = Daemon(tmp_path, "--pool", "1", "--unix", tmp_path / "socket", wait=False)
    try:
        daemon.wait_text("serves code-interpreter at unix:")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(tmp_path / "socket")), base_url="http://x",
                          headers={"X-API-KEY": KEY}, timeout=GUARD_S) as client:
            box = client.post("/sandboxes", json={"templateID": "base"})
            assert box.status_code == 201 and client.get("/v2/sandboxes").json()[0]["sandboxID"] == box.json()["sandboxID"]
            assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o700
    finally:
        daemon.stop()
    assert not (tmp_path / "socket").exists()


def test_installed(tmp_path):
    """`make install`, then everything from there; `make uninstall` leaves nothing."""
    if BIN.parent.name != "build":
        pytest.skip(f"{BIN} is not a folder that make installs from")
    make = ["make", "-C", ROOT, "--no-print-directory", f"BUILD={BIN.parent}", f"DESTDIR={tmp_path}/dest", f"VARIANT={BIN.name}"]
    subprocess.run([*make, "install"], check=True, capture_output=True, text=True)
    top = tmp_path / "dest" / "usr" / "local"
    for part in ("guest/rootfs/build.sh", "guest/python/kernel.py", "kernel/vmlinux", "rootfs/root.img"):
        assert (top / "share" / "thawbox" / part).is_file(), part
    unit = (top / "lib/systemd/system/thawboxd.service").read_text()
    assert "ExecStart=/usr/local/bin/thawboxd" in unit and "@PREFIX@" not in unit
    env = {name: value for name, value in os.environ.items() if name not in ("THAWBOX_VMM", "THAWBOX_ASSETS")}
    run = subprocess.run([top / "bin" / "thawbox", "run", "--json", "-c", "6 * 7"], env=env, cwd="/", capture_output=True, text=True,
                         timeout=GUARD_S)
    assert run.returncode == 0 and "42" in json.dumps(json.loads(run.stdout)), run.stderr
    daemon = Daemon(tmp_path, "--pool", "1", program=top / "bin" / "thawboxd")
    try:
        daemon.use()
        box = Sandbox.create()
        assert box.run_code("1 + 1").text == "2"
        programs = {os.readlink(f"/proc/{pid}/exe") for pid, _ in daemon.processes()}
        assert programs == {str(top / "bin" / "thawboxd"), str(top / "libexec" / "thawbox" / "thawbox-vmm")}
        box.kill()
    finally:
        assert daemon.stop(signal.SIGTERM) == 0
    subprocess.run([*make, "uninstall"], check=True, capture_output=True, text=True)
    assert [path for path in top.rglob("*") if not path.is_dir()] == []
