# SPDX-License-Identifier: Apache-2.0
"""The shell that runs cells: IPython, with a lean path around it for plain Python.

A plain cell needs none of IPython's source transformations, yet pays for them in pages touched
(docs/kernel.md). The lean path compiles and runs it in the same namespace, with the same history,
display hook, formatters and traceback printer; whatever is not plain goes to IPython's run_cell.
"""
from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import getpass
import io
import json
import linecache
import sys
import threading
import traceback
import warnings
from collections.abc import Coroutine
from typing import Any

import _thawbox
from IPython.core import async_helpers
from IPython.core.autocall import IPyAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.formatters import DisplayFormatter
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.macro import Macro
from traitlets import Type
from traitlets.config import Config

from thawbox_mime import DISPLAY, DISPLAYS_MAX, bundle, clean, shorten, too_large
from thawbox_rich import enrich

REPR_KEPT = 64 << 10
"""Longest text kept for `%history -o`, in characters."""

quote = json.encoder.encode_basestring_ascii
SCALARS = (int, str, bool, float, complex, bytes, type(None))
"""Types whose text IPython makes by repr() and for which it has no other representation."""


class OutStream(io.TextIOBase):
    """sys.stdout and sys.stderr: text straight to the frame writer.

    `buffer` takes bytes; fileno() is the captured descriptor, so children may be given it.
    """

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True

    class Raw(io.RawIOBase):
        """The binary side of a stream."""

        def __init__(self, stream: int) -> None:
            self._stream = stream

        def write(self, data: Any) -> int:
            n = memoryview(data).nbytes
            _thawbox.write(self._stream, data)
            return n

        def flush(self) -> None:
            _thawbox.hint()

        def fileno(self) -> int:
            return self._stream + 1

        def writable(self) -> bool:
            return True

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self.buffer = self.Raw(stream)
        self.name = ("<stdout>", "<stderr>")[stream]
        self.mode = "w"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        return _thawbox.write(self._stream, text)

    def flush(self) -> None:
        _thawbox.hint()

    def fileno(self) -> int:
        return self._stream + 1

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """Does nothing: `sys.stdout.close()` in one cell must not silence the next one."""

    def reconfigure(self, **options: Any) -> None:
        """Accepted for programs that set an encoding; the encoding stays UTF-8."""


class CellCompiler(CachingCompiler):
    """Names cells by a serial number: a hash of each cell would bring OpenSSL onto the path."""

    serial = 0

    def next_name(self, number: int) -> str:
        """Returns the file name of the cell to come."""
        return f"<ipython-input-{number}-{self.serial + 1}>"

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        name = self.next_name(number)
        self.serial += 1
        return name

    def keep(self, name: str, source: str, number: int) -> None:
        """Does what cache() does, for the name that next_name() gave: tracebacks show the source.
        """
        self.serial += 1
        self._filename_map[name] = number
        linecache.cache[name] = linecache._ipython_cache[name] = (
            len(source), None, source.splitlines(True), name)


class CellHistory(HistoryManager):
    """History of this session only: no database, no thread, plain attributes for last inputs."""

    _i00 = _i = _ii = _iii = ""

    def __init__(self, shell: Shell, **kwargs: Any) -> None:
        super().__init__(shell=shell, **kwargs)
        self.ns, self.hidden = shell.user_ns, shell.user_ns_hidden
        self.parsed, self.raw = self.input_hist_parsed, self.input_hist_raw

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        self.parsed.append(source.rstrip("\n"))
        self.raw.append(raw)
        self._i, self._ii, self._iii = self._i00, self._i, self._ii
        self._i00 = raw
        names = {"_i": self._i, "_ii": self._ii, "_iii": self._iii, f"_i{line_num}": raw}
        self.ns.update(names)
        self.hidden.update(names)


class CellDisplayHook(DisplayHook):
    """Sends a cell's value as a DISPLAY frame of kind "result". Does in few steps, on plain
    attributes, what its base does on traits."""

    exec_result = None

    def __init__(self, shell: Shell, **kwargs: Any) -> None:
        super().__init__(shell=shell, **kwargs)
        self.owner = shell
        self.ns, self.hidden = shell.user_ns, shell.user_ns_hidden
        self.history = shell.history_manager
        self.inputs = self.history.input_hist_parsed
        self.texts = self.history.output_hist_reprs

    def __call__(self, result: Any = None) -> None:
        if "_" in builtins.__dict__:
            self.check_for_underscore()
        if result is None or self.quiet():
            return
        text = self.owner.scalar_text(result)
        if text is None:
            data, metadata = self.compute_format_data(result)
            text = data.get("text/plain")
            payload = bundle("result", data, metadata) if data else None
        else:
            payload = b'{"kind":"result","data":{"text/plain":%s},"metadata":{}}' \
                % quote(shorten(clean(text), "the value")).encode("ascii")
        self.update_user_ns(result)
        if self.exec_result is not None:
            self.exec_result.result = result
        if payload:
            _thawbox.frame(DISPLAY, payload)
        if text is not None and len(text) <= REPR_KEPT:
            self.texts[self.owner.execution_count] = text

    def quiet(self) -> bool:
        """Tells whether the cell ends in a semicolon; tokenizes only a cell that may."""
        return ";" in self.inputs[-1] and bool(super().quiet())

    def update_user_ns(self, result: Any) -> None:
        """Sets _, __, ___ (unless the user took them), _N and Out[N]."""
        ns = self.ns
        if result is ns["_oh"]:
            return
        if len(ns["_oh"]) >= self.cache_size:
            self.cull_cache()
        ours = "_" not in builtins.__dict__ and ns.get("_", self._) is self._ \
            and ns.get("__", self.__) is self.__ and ns.get("___", self.___) is self.___
        self._, self.__, self.___ = result, self._, self.__
        number = self.owner.execution_count
        names = {f"_{number}": result}
        if ours:
            names.update(_=self._, __=self.__, ___=self.___)
        ns.update(names)
        self.hidden.update(names)
        ns["_oh"][number] = result


class CellFormatter(DisplayFormatter):
    """Adds what E2B's clients expect of tables and figures. A value that has a text alone is none of these."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        data, metadata = DisplayFormatter.format(self, obj, include, exclude)
        if len(data) > 1:
            enrich(obj, data, include, exclude)
        return data, metadata


class CellPublisher(DisplayPublisher):
    """Sends display() and friends as DISPLAY frames of kind "display", up to a bound for each cell."""

    left = DISPLAYS_MAX
    serial = 0

    def publish(self, data: dict, metadata: dict | None = None, source: str | None = None, *,
                transient: dict | None = None, update: bool = False, **kwargs: Any) -> None:
        payload = bundle("display", data, metadata)
        if self.serial != self.shell.compile.serial:
            self.serial, self.left = self.shell.compile.serial, DISPLAYS_MAX
        if len(payload) > self.left >= 0:
            payload = too_large("display", len(payload), DISPLAYS_MAX)
            self.left = -1  # and no more of them
        elif self.left >= 0:
            self.left -= len(payload)
        else:
            return
        _thawbox.frame(DISPLAY, payload)
        _thawbox.hint()

    def clear_output(self, wait: bool = False) -> None:
        """Does nothing: frames that were sent stay sent."""


def no_input(*args: Any, **kwargs: Any) -> str:
    """Stands for input() and getpass(): raises, because a cell has nobody to ask."""
    raise StdinNotImplementedError(
        "input() was called, but a sandbox's cell has no standard input. "
        "Set the value in the code instead.")


def take_streams() -> None:
    """Puts our streams, and nobody to ask, where Python keeps them. For good."""
    sys.stdout = sys.__stdout__ = OutStream(0)
    sys.stderr = sys.__stderr__ = OutStream(1)
    builtins.input = getpass.getpass = no_input


class Shell(InteractiveShell):
    """An InteractiveShell without terminal, history file and threads. Main thread only."""

    displayhook_class = Type(CellDisplayHook)
    display_pub_class = Type(CellPublisher)
    compiler_class = Type(CellCompiler)
    execution_count = 1
    pristine = False
    """No cell has run since settle_in() or forget(), and nobody has hooked into the machinery."""
    has_plain_display = False
    """Nothing that runs can change how a scalar is shown."""
    system = InteractiveShell.system_raw

    def __init__(self, ipython_dir: str) -> None:
        """Made by Shell.instance(ipython_dir=...); the directory is created if it is not there."""
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        config.IPCompleter.use_jedi = False
        super().__init__(config=config, ipython_dir=ipython_dir)
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        self.shown: list[tuple[BaseException | None, str]] = []
        self.loop_runner = self.run_coroutine
        self.builtin_trap.__enter__()
        self.display_trap.__enter__()
        sys.excepthook = self.excepthook

    def settle_in(self) -> None:
        """Notes the state in which cells may be lean, after extensions have been loaded.

        It is compared on every cell, on the dictionaries behind the traits: reading a trait runs
        several functions of traitlets, and each lies on pages of its own.
        """
        for name in ("ast_transformers", "ast_node_interactivity", "input_transformers_post"):
            getattr(self, name)  # a trait is in the dictionary from its first reading on
        formatters = self.display_formatter.formatters
        plain = formatters["text/plain"]
        self._printers = plain.type_printers
        self._text_traits = plain._trait_values
        self._text_standard = {n: getattr(plain, n) for n in ("pprint", "float_format")}
        self._scalar_printers = {t: self._printers.get(t) for t in SCALARS}
        self._rich = tuple(f.type_printers for f in (
            *(f for mime, f in formatters.items() if mime != "text/plain"),
            self.display_formatter.ipython_display_formatter,
            self.display_formatter.mimebundle_formatter))
        manager = self.input_transformer_manager
        self._standard = tuple(
            (now, {name: copy.copy(now[name]) for name in names}) for now, names in (
                (self._trait_values, ("ast_transformers", "ast_node_interactivity",
                                      "input_transformers_post")),
                (vars(self), ("custom_exceptions", "_call_pdb")),
                (vars(manager), ("cleanup_transforms", "line_transforms", "token_transformers"))))
        self._callbacks = {name: list(c) for name, c in self.events.callbacks.items()}
        self._line_magics, self._cell_magics = (
            self.magics_manager.magics[kind] for kind in ("line", "cell"))
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        self._figures = helpers.Gcf.figs if helpers else None
        self._ns = dict(self.user_ns)
        self._hidden = dict(self.user_ns_hidden)
        self.pristine = True

    def init_display_formatter(self) -> None:
        self.display_formatter = CellFormatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_history(self) -> None:
        self.history = self.history_manager = CellHistory(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def enable_gui(self, gui: str | None = None) -> None:
        """There are no event loops of windows here."""

    def ask_exit(self) -> None:
        """exit() and quit(): the context outlives its cells."""
        raise SystemExit

    def showsyntaxerror(self, filename: str | None = None,
                        running_compiled_code: bool = False) -> None:
        """As the base does, less our own frame above the cell's."""
        etype, value, tb = self._get_exc_info()
        frames = traceback.extract_tb(tb)[1:] if running_compiled_code else []
        self._showtraceback(etype, value, self.SyntaxTB.structured_traceback(etype, value, frames))

    def _showtraceback(self, etype: type, evalue: BaseException | None, stb: list[str]) -> None:
        self.shown.append((evalue, self.InteractiveTB.stb2text(stb)))

    # ---- running ----

    def run(self, code: str, silent: bool) -> dict[str, str] | None:
        """Runs a cell; frames of what it shows are queued on the way.

        Returns None, or the error as protocol section 3 shapes it. Raises nothing but a
        KeyboardInterrupt that arrives between two of its own steps.
        """
        self.shown.clear()
        source = self.lean_source(code)
        if source is None:
            error = self.run_ipython(code, silent)
        elif not source:
            error = None
        else:
            error = self.run_lean(source, code, silent)
        self.pristine = False
        return None if error is None and not self.shown else self.report(error)

    def run_ipython(self, code: str, silent: bool) -> BaseException | None:
        """Runs a cell by IPython's own run_cell; returns its exception."""
        result = self.run_cell(code, store_history=not silent, silent=silent)
        return result.error_before_exec or result.error_in_exec

    def run_coroutine(self, cell: Coroutine[Any, Any, Any]) -> Any:
        """Runs an asynchronous cell in IPython's loop. One that is interrupted while it waits is
        cancelled: left in the loop, it would go on in the middle of a later cell."""
        loop = async_helpers.get_asyncio_loop()
        task = loop.create_task(cell)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            if not task.done():
                task.cancel()
                with contextlib.suppress(BaseException):
                    loop.run_until_complete(task)
                self.shown.clear()  # its CancelledError: the interrupt is what the user sees
            raise

    def lean_source(self, code: str) -> str | None:
        """Returns the source as IPython would transform it, "" if there is none, None if only
        IPython can tell. Decided by a look at the text; the compiler has the last word."""
        if not code or code.isspace():
            return ""
        while code[0] in " \t\n":
            head, newline, rest = code.partition("\n")
            if not newline or not head.isspace() and head:
                return None
            code = rest
        if "\r" in code or "\f" in code or "await" in code or "async" in code:
            return None
        if code.startswith("In ["):
            return None
        if code[-1] != "\n":
            code += "\n"
        if code.find("\n") == len(code) - 1 and self.is_dynamic(code):
            return None
        return code

    def is_dynamic(self, line: str) -> bool:
        """Tells whether a one-line cell may be a magic without %, an alias, a macro or exit."""
        word = line.split(None, 1)[0]
        return word.isidentifier() and (
            word in self._line_magics or word in self._cell_magics
            or isinstance(self.user_ns.get(word), (IPyAutocall, Macro)))

    def is_standard(self) -> bool:
        """Tells whether nobody has hooked into the machinery that the lean path leaves out."""
        for now, then in self._standard:
            for name, value in then.items():
                if now[name] != value:
                    return False
        return not self.logger.log_active and self.events.callbacks == self._callbacks

    def compile_lean(self, source: str, name: str, silent: bool) -> tuple[Any, Any, bool] | None:
        """Returns the cell as (statements, last expression, whether that one is an eval), either
        part None; or None when the source is not plain Python."""
        try:
            if not silent and source.find("\n") == len(source) - 1:
                try:
                    return None, compile(source, name, "eval", self.compile.flags, True), True
                except SyntaxError:
                    pass
            tree = self.compile.ast_parse(source, name)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not silent:
                last = self.compile(ast.Interactive([tree.body.pop()]), name, "single")
            body = self.compile(tree, name, "exec") if tree.body else None
            return body, last, False
        except (SyntaxError, ValueError, TypeError, OverflowError, MemoryError, RecursionError):
            return None

    def run_lean(self, source: str, raw: str, silent: bool) -> BaseException | None:
        """Runs a plain cell, or hands it to IPython if it is not; returns its exception."""
        number = self.execution_count
        name = self.compile.next_name(number)
        # Before the first cell nobody can have hooked in, and while it runs only a call could.
        is_standard = self.pristine or self.is_standard()
        self.has_plain_display = self.pristine and "(" not in source
        parts = self.compile_lean(source, name, silent) if is_standard else None
        if parts is None:
            return self.run_ipython(raw, silent)
        self.compile.keep(name, source, number)
        if not silent:
            self.history.store_inputs(number, source, raw)
        error = self.execute(*parts)
        self.has_plain_display = False
        if self.has_figures():
            self.events.trigger("post_execute")
        if not silent:
            self.execution_count = number + 1
        return error

    def has_figures(self) -> bool:
        """Tells whether pyplot has figures that the end of the cell must show."""
        if self._figures is None:  # matplotlib was not there yet at settle_in()
            helpers = sys.modules.get("matplotlib._pylab_helpers")
            return bool(helpers and helpers.Gcf.figs)
        return bool(self._figures)

    def execute(self, body: Any, last: Any, is_eval: bool) -> BaseException | None:
        """Runs compiled code in the user's namespace; returns the exception it raised, shown."""
        ns = self.user_ns
        try:
            if body is not None:
                exec(body, ns)
            if is_eval:
                sys.displayhook(eval(last, ns))
            elif last is not None:
                exec(last, ns)
        except SystemExit as e:
            self.showtraceback(exception_only=True)
            return e
        except BaseException as e:
            self.showtraceback(running_compiled_code=True)
            return e
        return None

    # ---- what is seen ----

    def scalar_text(self, value: Any) -> str | None:
        """Returns the text of a value that has no other representation, None for the others."""
        kind = type(value)
        if kind not in SCALARS or not (self.has_plain_display or self.is_plain(kind)):
            return None
        try:
            return repr(value)
        except ValueError:
            return None  # an int with too many digits: IPython's way of saying so

    def is_plain(self, kind: type) -> bool:
        """Tells whether nobody has given values of a type another text or representation."""
        if self._printers.get(kind) is not self._scalar_printers[kind]:
            return False
        for name, standard in self._text_standard.items():
            if self._text_traits[name] != standard:
                return False
        for printers in self._rich:
            if kind in printers:
                return False
        return True

    def report(self, error: BaseException | None) -> dict[str, str] | None:
        """Turns what was shown into the RESULT's error; the rest, as of a failed repr, goes to
        stderr."""
        text = None
        for value, shown in self.shown:
            if value is error and error is not None:
                text = shown
            else:
                _thawbox.write(1, shown + "\n")
        self.shown.clear()
        if error is None:
            return None
        if text is None:
            text = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
        try:
            message = str(error)
        except Exception as e:
            message = f"<str() of the exception raised {type(e).__name__}>"
        return {"name": type(error).__name__, "value": shorten(clean(message), "the value"),
                "traceback": shorten(clean(text), "the traceback")}

    def complete_at(self, code: str, cursor: int) -> tuple[list[str], int, int]:
        """Returns completions and the range of characters of `code` that they replace."""
        start = code.rfind("\n", 0, cursor) + 1
        end = code.find("\n", cursor)
        line = code[start:] if end < 0 else code[start:end]
        text, matches = self.complete("", line, cursor - start)
        return matches, cursor - len(text), cursor

    def stop_loops(self) -> None:
        """Ends the event loops that IPython has started for cells: a fork would leave the child
        with a loop whose thread and descriptors are its parent's."""
        own = async_helpers._asyncio_event_loop
        script = self.magics_manager.registry["ScriptMagics"].event_loop
        if script:
            script.call_soon_threadsafe(script.stop)
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join(5)
        for loop in (own, script):
            if loop:
                loop.close()
        async_helpers._asyncio_event_loop = None
        self.magics_manager.registry["ScriptMagics"].event_loop = None

    def forget(self) -> None:
        """Makes the shell as it was at settle_in(): what cells did since then to the namespace,
        the history and the counters is gone."""
        for now, then in ((self.user_ns, self._ns), (self.user_ns_hidden, self._hidden)):
            for name in now.keys() - then.keys():
                del now[name]
            now.update(then)
        history = self.history
        for kept in (history.parsed, history.raw):
            kept[1:] = []
        history.output_hist.clear()
        history.output_hist_reprs.clear()
        history.dir_hist[1:] = []
        history._i00 = history._i = history._ii = history._iii = ""
        hook = self.displayhook
        hook._ = hook.__ = hook.___ = ""
        for cache in (linecache.cache, linecache._ipython_cache, self.compile._filename_map):
            for name in [n for n in cache if n.startswith("<ipython-input-")]:
                del cache[name]
        for name in ("last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        self.execution_count = 1
        self.compile.serial = self.display_pub.serial = 0
        self.pristine = self.is_standard()
