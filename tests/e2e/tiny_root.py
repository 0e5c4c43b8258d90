# SPDX-License-Identifier: Apache-2.0
"""A root tree that has Python with pip alone, and an index of packages on the loopback: what the image's own mmdebstrap
and PyPI are too slow or too far away for. Run as a program it plays mmdebstrap: it makes that tree ($TINY_ROOT), has
pip's packages installed as customize.sh does, and adds a line to $TINY_ROOT.log."""
from __future__ import annotations

import collections
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

AS_ROOT = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
WHEELS = Path("/usr/share/python-wheels")
LEFT_OUT = shutil.ignore_patterns("test", "tests", "idlelib", "lib2to3", "pydoc_data", "ensurepip", "tkinter", "config-*", "dist-packages",
                                   "distutils", "_tkinter.*", "_dbm.*", "_sqlite3.*", "_codecs_*", "_test*", "xx*", "nis.*", "ossaudiodev.*")


def make_tree(tree: Path) -> Path:
    """Debian's Python, as this machine has it, and pip."""
    for folder in ("usr/bin", "usr/sbin", "usr/lib64", "usr/local/lib", "etc", "tmp", "dev"):
        (tree / folder).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "dev" / "null").touch()
    shutil.copytree("/usr/lib/python3.11", tree / "usr/lib/python3.11", symlinks=True, ignore=LEFT_OUT)
    shutil.copy("/usr/bin/python3.11", tree / "usr/bin/python3")
    modules = list((tree / "usr/lib/python3.11/lib-dynload").glob("*.so"))
    linked = subprocess.run(["ldd", "/usr/bin/python3.11", *modules], check=True, capture_output=True, text=True).stdout
    for path in set(re.findall(r"(/lib\S+) \(0x", linked)):
        (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tree / path[1:])
    with zipfile.ZipFile(next(WHEELS.glob("pip-*.whl"))) as pip:
        pip.extractall(tree / "usr/lib/python3/dist-packages")
    in_tree(tree, "-m", "compileall", "-q", "/usr/lib/python3/dist-packages/pip")
    return tree


def copy_tree(tree: Path, to: Path) -> Path:
    subprocess.run(["cp", "-al", tree, to], check=True)
    return to


def in_tree(tree: Path, *args: str) -> str:
    """What its Python prints."""
    return subprocess.run([*AS_ROOT, "/usr/sbin/chroot", tree, "python3", *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def wheel_files(name: str, version: str, requires: str = "") -> dict[str, str]:
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    return {f"{name}.py": f"version = {version!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": ""}


def make_wheel(folder: Path, name: str, version: str, requires: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in wheel_files(name, version, requires).items():
            wheel.writestr(zipfile.ZipInfo(member), text)  # with the time of no day: the same bytes each time
    return path


def add_debian(tree: Path, name: str, version: str) -> None:
    """A Python package as Debian's packages leave it."""
    for member, text in wheel_files(name, version).items():
        path = tree / "usr/lib/python3/dist-packages" / member
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


class Index:
    """Serves the files of a folder as PyPI does; `fetched` counts them."""

    def __init__(self, folder: Path):
        self.folder, self.fetched = folder, collections.Counter()
        folder.mkdir()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                kind, name = self.path.strip("/").split("/")
                body = index.file(name) if kind == "files" else index.page(name)
                self.send_response(200 if body else 404)
                if kind == "files":
                    self.send_header("Cache-Control", "max-age=365000000, immutable, public")
                self.send_header("Content-Type", "application/octet-stream" if kind == "files" else "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        host = f"127.0.0.1:{self.server.server_port}"
        self.env = {"PIP_INDEX_URL": f"http://{host}/simple", "PIP_TRUSTED_HOST": host}  # trusted: it may be cached, as by HTTPS

    def add(self, name: str, version: str, requires: str = "") -> Path:
        return make_wheel(self.folder, name, version, requires)

    def page(self, name: str) -> bytes:
        files = [path for path in sorted(self.folder.iterdir()) if path.name.split("-")[0].lower().replace("_", "-") == name]
        return "\n".join(f'<a href="/files/{path.name}#sha256={digest(path)}">{path.name}</a>' for path in files).encode()

    def file(self, name: str) -> bytes:
        self.fetched[name] += 1
        return (self.folder / name).read_bytes()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def play_mmdebstrap(args: list[str]) -> None:
    (hook,) = [Path(arg.split("=", 1)[1]) for arg in args if arg.startswith("--customize-hook=")]
    tiny = Path(os.environ["TINY_ROOT"])
    with open(f"{tiny}.log", "a", encoding="utf-8") as log:
        log.write("tree\n")
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(tiny, Path(folder) / "tree")
        if packages := os.environ["TB_PIP_PACKAGES"].split():
            subprocess.run([hook.with_name("pip.sh"), tree, os.environ["TB_PIP_DIR"], *packages], check=True, stdout=sys.stderr)
        subprocess.run(["tar", "-c", "-C", tree, "."], check=True)


if __name__ == "__main__":
    play_mmdebstrap(sys.argv[1:])
