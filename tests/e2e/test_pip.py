# SPDX-License-Identifier: Apache-2.0
"""A template's packages of pip: guest/rootfs/pip.sh in a small root tree with a real pip, and what build.sh and
`thawbox template build` make of its lock. An index on the loopback stands for PyPI; nothing here needs a network."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import BIN
from tiny_root import AS_ROOT, WHEELS, Index, add_debian, copy_tree, digest, in_tree, make_tree, make_wheel

ROOT = Path(__file__).parents[2]
PACKAGES = "usr/local/lib/python3.11/dist-packages"
GUARD_S = 120


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    if not list(WHEELS.glob("pip-*.whl")):
        pytest.skip("no wheel of pip: apt-get install python3-venv")
    return make_tree(tmp_path_factory.mktemp("tiny") / "root")


@pytest.fixture
def index(tmp_path):
    index = Index(tmp_path / "index")
    yield index
    index.close()


def write_lock(path: Path, packages: str, *wheels: Path) -> bytes:
    lines = ["{}=={} --hash=sha256:{}".format(*wheel.name.split("-")[:2], digest(wheel)) for wheel in wheels]
    path.write_text("\n".join([f"# of: {packages}", *lines, ""]))
    return path.read_bytes()


# --- pip.sh ------------------------------------------------------------------------------------------------------------------

class Tree:
    """A copy of the tree that pip.sh is run on."""

    def __init__(self, tiny: Path, index: Index, tmp: Path):
        self.path, self.index, self.dir = copy_tree(tiny, tmp / "tree"), index, tmp / "dir"
        (self.dir / "wheels").mkdir(parents=True)
        self.lock = self.path / "etc/thawbox/pip.lock"

    def __call__(self, *packages: str, code: int = 0, **env: str) -> str:
        """What is said; the lock is in `self.lock` afterwards, or nothing is."""
        done = subprocess.run([*AS_ROOT, ROOT / "guest/rootfs/pip.sh", self.path, self.dir, *packages], capture_output=True, text=True,
                              timeout=GUARD_S, env={**os.environ, **self.index.env, **env})
        assert done.returncode == code, done.stdout + done.stderr
        assert self.lock.exists() == (code == 0)
        assert not list((self.path / "tmp").iterdir())
        return done.stderr

    @property
    def locked(self) -> list[str]:
        return [line for line in self.lock.read_text().splitlines() if not line.startswith("#")]

    def give_lock(self, packages: str, *wheels: Path) -> bytes:
        return write_lock(self.dir / "pip.lock", packages, *wheels)


@pytest.fixture
def tree(tiny, index, tmp_path) -> Tree:
    return Tree(tiny, index, tmp_path)


def test_newest_that_fit(tree):
    """Debian's package stays where it serves, the host's own settings of pip do not count, each wheel is fetched once."""
    tree.index.add("Greet_er", "1.0")
    greet = tree.index.add("Greet_er", "1.1", "words>=1")
    tree.index.add("Greet_er", "2.0")
    tree.index.add("words", "2.0")
    extra = tree.index.add("extra", "3.0")
    add_debian(tree.path, "words", "1.0")
    tree("extra", "greet-er<2", PIP_TARGET="/elsewhere", PIP_NO_DEPS="1", PIP_CONSTRAINT="/none", PIP_FIND_LINKS="/none")
    assert tree.locked == [f"extra==3.0 --hash=sha256:{digest(extra)}", f"greet-er==1.1 --hash=sha256:{digest(greet)}"]
    assert "\n# of: extra greet-er<2\n" in tree.lock.read_text()
    assert tree.index.fetched == {greet.name: 1, extra.name: 1}
    assert in_tree(tree.path, "-c", "import Greet_er, words; print(Greet_er.version, words.version)") == "1.1 1.0\n"
    assert (tree.path / PACKAGES / "extra.py").exists()


def test_debian_has_it_all(tree):
    add_debian(tree.path, "words", "1.0")
    tree("words")
    assert tree.locked == [] and not tree.index.fetched


def test_place_of_debians(tree):
    add_debian(tree.path, "words", "1.0")
    tree.index.add("words", "2.0")
    said = tree("words>1")
    assert "note: words 2.0 of pip takes the place of Debian's 1.0" in said
    assert in_tree(tree.path, "-c", "import words; print(words.version)") == "2.0\n"


def test_lock_is_followed(tree):
    """Also when there are newer ones, and without the index from the template's own wheels; it is kept byte for byte."""
    old = make_wheel(tree.dir / "wheels", "greet", "1.0", "words")
    words = make_wheel(tree.dir / "wheels", "words", "1.0")
    make_wheel(tree.dir / "wheels", "greet", "1.1", "words")
    lock = tree.give_lock("greet", old, words)
    tree("greet", PIP_NO_INDEX="1")
    assert tree.lock.read_bytes() == lock
    assert in_tree(tree.path, "-c", "import greet; print(greet.version)") == "1.0\n"


def test_wheel_that_was_changed(tree):
    tree.give_lock("greet", tree.index.add("greet", "1.0"))
    tree.index.add("greet", "1.0", "evil")
    tree.index.add("evil", "1.0")
    said = tree("greet", code=1)
    assert "error: a wheel is not the one that pip.lock has the hash of" in said and "remedy: " in said and "remove pip.lock" in said
    assert not (tree.path / PACKAGES / "greet.py").exists()


def test_wheel_that_is_gone(tree):
    tree.give_lock("greet", tree.index.add("greet", "1.0"))
    (tree.index.folder / "greet-1.0-py3-none-any.whl").rename(tree.index.folder / "greet-1.1-py3-none-any.whl")
    said = tree("greet", code=1)
    assert "error: pip cannot install what pip.lock names" in said and "remove pip.lock" in said


def test_lock_that_is_not_enough(tree):
    """Debian gave the rest when it was written, and does not any more."""
    tree.give_lock("greet", tree.index.add("greet", "1.0", "words"))
    tree.index.add("words", "1.0")
    said = tree("greet", code=1)
    assert "does not give all of: greet" in said and "remove pip.lock" in said


def test_sources_alone(tree):
    (tree.index.folder / "greet-1.0.tar.gz").write_bytes(b"not to be opened")
    said = tree("greet==1.0", code=1)
    assert "error: there is no wheel of greet==1.0 for Python 3.11" in said and "versions with a wheel: none" in said
    assert "pip wheel --no-deps -w wheels 'greet==1.0'" in said and not tree.index.fetched
    tree.index.add("greet", "0.9")
    assert "versions with a wheel: 0.9" in tree("greet==1.0", code=1)


def test_nothing_of_that_name(tree):
    said = tree("gret", code=1)
    assert "error: pip finds nothing of the name gret" in said and "PIP_INDEX_URL" in said


def test_versions_that_disagree(tree):
    tree.index.add("a", "1.0", "c<2")
    tree.index.add("b", "1.0", "c>=2")
    tree.index.add("c", "1.0")
    tree.index.add("c", "2.0")
    said = tree("a", "b", code=1)
    assert "error: pip cannot choose versions of: a b" in said and "conflict" in said


# --- build.sh ----------------------------------------------------------------------------------------------------------------

class Image:
    """Builds of a template, with a tiny tree in the place of Debian's."""

    def __init__(self, tiny: Path, index: Index, tmp: Path):
        self.tree, self.index, self.out, self.template = tmp / "root", index, tmp / "out", tmp / "words"
        copy_tree(tiny, self.tree)
        self.guest = Path(shutil.copytree(ROOT / "guest", tmp / "prefix/share/thawbox/guest"))
        self.template.mkdir()
        self.lock = self.template / "pip.lock"
        self.write("greet")
        (tmp / "bin").mkdir()
        play = tmp / "bin" / "mmdebstrap"
        play.write_text(f"#!/bin/sh\nexec {sys.executable} {ROOT}/tests/e2e/tiny_root.py \"$@\"\n")
        play.chmod(0o755)
        self.env = {"PATH": f"{play.parent}:{os.environ['PATH']}", "TINY_ROOT": str(self.tree), **index.env}

    def write(self, *packages: str) -> None:
        (self.template / "template.json").write_text(json.dumps({"name": "words", "packages": {"pip": packages}}))

    def run(self, *args: str, prefix: list[str] = AS_ROOT) -> subprocess.CompletedProcess:
        return subprocess.run([*prefix, self.guest / "rootfs/build.sh", self.out, "--template", self.template, *args],
                              capture_output=True, text=True, timeout=GUARD_S, env={**os.environ, **self.env})

    def __call__(self, *args: str) -> Path:
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    @property
    def trees(self) -> int:
        """How often Debian and the packages were installed."""
        log = Path(f"{self.tree}.log")
        return len(log.read_text().splitlines()) if log.exists() else 0

    def files(self) -> set[str]:
        return {path.name for path in self.template.iterdir()}


@pytest.fixture
def image(tiny, index, tmp_path) -> Image:
    index.add("greet", "1.0")
    return Image(tiny, index, tmp_path)


def test_built_once(image):
    """The lock that a build leaves does not make the next one build; removed, it is written anew, and so is the image if need be."""
    first = image()
    lock = image.lock.read_bytes()
    assert b"\n# of: greet\n" in lock and (first / "pip.lock").read_bytes() == lock
    assert image.files() == {"template.json", "pip.lock"}
    made = (first / "root.img").stat().st_ino
    newer = image.index.add("greet", "1.1")
    (image.template / "README").write_text("not part of the image")
    assert image() == first and image.trees == 1, "as it was locked"
    newer.unlink()
    image.lock.unlink()
    assert image() == first and image.trees == 2 and (first / "root.img").stat().st_ino == made, "chosen anew, with the same result"
    assert image.lock.read_bytes() == lock


def test_refresh(image):
    write_lock(image.lock, "greet", next(image.index.folder.iterdir()))
    image.index.add("greet", "1.1")
    made = image("--refresh")
    assert "# of: greet\ngreet==1.1 --hash" in image.lock.read_text()
    assert image() == made and image.trees == 1


def test_list_that_has_changed(image):
    write_lock(image.lock, "greet", next(image.index.folder.iterdir()))
    image.index.add("greet", "1.1")
    image.index.add("other", "1.0")
    image.write("other", "greet>1")
    done = image.run()
    assert done.returncode == 0 and "pip.lock is of another list of packages" in done.stderr, done.stderr
    assert "# of: greet>1 other\ngreet==1.1 --hash" in image.lock.read_text()


def test_failure_leaves_nothing(image):
    """No lock, and of the old one every byte."""
    lock = write_lock(image.lock, "greet", next(image.index.folder.iterdir()))
    image.write("greet", "absent")
    done = image.run()
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-2].startswith("rootfs: error: pip finds nothing of the name absent"), done.stderr
    assert done.stderr.splitlines()[-1].startswith("        remedy: ")
    assert image.lock.read_bytes() == lock and image.files() == {"template.json", "pip.lock"}
    assert not [path for path in (image.out / "rootfs").iterdir() if path.is_dir()]


def test_folder_that_takes_no_lock(image):
    """It is built all the same, told, and once."""
    namespace = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "--propagation", "private", "sh", "-c",
                 f'mount --bind "{image.template}" "{image.template}" && mount -o remount,ro,bind "{image.template}" && exec "$@"', "sh"]
    first = image.run(prefix=namespace)
    assert first.returncode == 0 and "cannot be written to: the lock of what pip has installed was not kept there" in first.stderr, first.stderr
    assert image.files() == {"template.json"}
    image.index.add("greet", "1.1")
    second = image.run(prefix=namespace)
    assert second.stdout == first.stdout and image.trees == 1
    assert "greet==1.0 --hash" in Path(first.stdout.strip(), "pip.lock").read_text()


def test_without_packages(image):
    """Nothing of pip's, no lock; and pip.sh is no part of the image's name."""
    image.write()
    made = image()
    assert image.files() == {"template.json"} and not (made / "pip.lock").exists() and not image.index.fetched
    with open(image.guest / "rootfs/pip.sh", "a", encoding="utf-8") as script:
        script.write("# another one\n")
    assert image() == made and image.trees == 1


# --- thawbox template build --------------------------------------------------------------------------------------------------

def test_baked_once(image, thawbox, tmp_path):
    """The installed program, with a machine that is ready at once: what is locked by the first bake is no reason for a second."""
    prefix = tmp_path / "prefix"
    (prefix / "bin").mkdir()
    shutil.copy(BIN / "thawbox", prefix / "bin")
    for name in ("vmlinux", "symbols"):
        (tmp_path / name).write_text(name)
    command = [*AS_ROOT, prefix / "bin/thawbox", "template", "build", image.template, "--kernel", tmp_path / "vmlinux", "--symbols",
               tmp_path / "symbols", "--json"]
    env = {**thawbox.env, **image.env, "THAWBOX_HOME": str(tmp_path / "home"), "FAKE_MONITOR_LOG": str(tmp_path / "monitors.log"),
           "THAWBOX_VMM": str(Path(__file__).with_name("fake_monitor.py"))}

    def bake() -> bool:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=GUARD_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["built"]

    assert bake() and image.lock.exists()
    assert not bake() and image.trees == 1
    image.lock.unlink()
    image.index.add("greet", "1.1")
    assert bake()
