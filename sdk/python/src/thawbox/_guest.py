# SPDX-License-Identifier: Apache-2.0
"""The guest's side of an agent's executor. It runs in the sandbox, behind the text of _codec.py, and needs nothing else.

`dumps`, `loads` are _codec's. What goes to the host is a display of a MIME type of ours, which the host takes out of
the cell's results; what comes back to a call lies in a file that the host writes.
"""
# ruff: noqa: F821, PLW0603
# mypy: ignore-errors
from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib.util
import json
import os
import sys
import threading
import types

from IPython import get_ipython

FINAL = "application/vnd.thawbox.final-answer+json"
CALL = "application/vnd.thawbox.call+json"
ANSWER = "application/vnd.thawbox.answer+json"
REPLIES = "/tmp/.thawbox-replies"
IN_MOVED_TO, IN_CLOSE_WRITE = 0x80, 0x8


class FinalAnswer(BaseException):
    """Ends the cell; the answer has been said before, so whoever catches this changes nothing."""


class HostToolError(Exception):
    """A tool on the host failed with an exception that Python does not have here."""


class Tool:
    """What tools that are sent as source derive from."""

    is_initialized = False

    def __init__(self, *args, **kwargs):
        pass

    def setup(self):
        self.is_initialized = True

    def __call__(self, *args, **kwargs):
        if not self.is_initialized:
            self.setup()
        return self.forward(*args, **kwargs)


def publish(mime, text):
    get_ipython().display_pub.publish({mime: text})


def answer(value):
    """Of a cell of the executor's own."""
    publish(ANSWER, dumps(value))


def final(value):
    publish(FINAL, dumps(value))
    if threading.current_thread() is not threading.main_thread():
        raise SystemExit  # ends the thread without a word
    raise FinalAnswer


# ---- tools that run on the host ----

_calls = 0
_lock = threading.Lock()


def _wait_for(path):
    """Until the file is there, without looking again and again."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, REPLIES.encode(), IN_MOVED_TO | IN_CLOSE_WRITE) < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    try:
        while not os.path.exists(path):
            os.read(fd, 4096)
    finally:
        os.close(fd)


def call_host(name, args, kwargs):
    global _calls
    with _lock:
        _calls += 1
        number = _calls
    os.makedirs(REPLIES, exist_ok=True)
    path = f"{REPLIES}/{number}"
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    publish(CALL, json.dumps({"id": number, "name": name, "args": dumps([list(args), kwargs])}))
    _wait_for(path)
    with open(path) as f:
        reply = json.load(f)
    os.remove(path)
    if "error" not in reply:
        return loads(reply["value"])
    kind = getattr(builtins, reply["error"]["name"], None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            error = kind(reply["error"]["value"])
        except Exception:
            error = HostToolError(reply["error"]["value"])
        raise error
    raise HostToolError(f"{reply['error']['name']}: {reply['error']['value']}")


def _stub(name, doc):
    def stub(*args, **kwargs):
        return call_host(name, args, kwargs)

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = doc
    return stub


# ---- tools that run here ----

def _stand_in():
    """Tools import their base class: where smolagents is not installed, ours is given."""
    if "smolagents" in sys.modules or importlib.util.find_spec("smolagents"):
        return
    module, tools = types.ModuleType("smolagents"), types.ModuleType("smolagents.tools")
    module.Tool = tools.Tool = Tool
    module.tools = tools
    sys.modules.update({"smolagents": module, "smolagents.tools": tools})


def _load(code, name):
    """An instance of the tool, and the modules that it imports and that are not here."""
    tree = ast.parse(code)
    space, missing, rest = {"__name__": f"thawbox_tool_{name}"}, [], []
    for statement in tree.body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            rest.append(statement)
            continue
        try:  # what the tool imports for some of its ways only may be missing: it finds out when it gets there
            exec(compile(ast.Module([statement], []), f"<tool {name}>", "exec"), space)
        except ImportError as error:
            missing.append(str(error.name or error))
    exec(compile(ast.Module(rest, []), f"<tool {name}>", "exec"), space)
    kinds = [v for v in space.values() if isinstance(v, type) and hasattr(v, "forward") and v is not Tool]
    return kinds[-1](), missing


def _final(tool):
    if tool is None:
        def final_answer(answer=None):
            final(answer)
    else:
        def final_answer(*args, **kwargs):
            final(tool(*args, **kwargs))
    return final_answer


def set_tools(tools):
    """Puts tools where cells see them; answers what each lacks: {name: [module, ...]}, or {name: "error"}."""
    _stand_in()
    lacks = {}
    for tool in tools:
        name = tool["name"]
        if tool["where"] == "host":
            made = _stub(name, tool["doc"])
        elif tool["where"] == "guest":
            try:
                made, lacks[name] = _load(tool["code"], name)
            except Exception as error:
                lacks[name] = f"{type(error).__name__}: {error}"
                continue
        else:
            made = None
        get_ipython().user_ns[name] = _final(made) if tool["final"] else made
    answer(lacks)


def set_variables(text):
    get_ipython().user_ns.update(loads(text))


def set_pickled(text):
    """Of the host, which asked for it: the guest may be given whatever the host likes."""
    import base64
    import pickle

    get_ipython().user_ns.update(pickle.loads(base64.b64decode(text)))


def find_missing(names):
    answer([name for name in names if importlib.util.find_spec(name) is None])


def show_last():
    """The value of the last cell, by value where it can be passed."""
    try:
        answer([True, get_ipython().user_ns.get("_")])
    except Exception:
        answer([False, None])
