# SPDX-License-Identifier: Apache-2.0
"""Runs the code of a smolagents CodeAgent in a sandbox: `CodeAgent(..., executor=ThawboxExecutor())`.

Code, tools and variables live in one persistent interpreter of a microVM. Tools that are plain source are sent there;
tools that cannot be (of MCP, with arguments, with secrets, managed agents) stay on the host and are called from the
guest, by name and with plain values alone. docs/python.md tells what is decided how.
"""
from __future__ import annotations

import ast
import base64
import inspect
import io
import json
import logging
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import resources
from types import TracebackType
from typing import Any, Literal

import smolagents
from smolagents.default_tools import FinalAnswerTool, PythonInterpreterTool
from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.tools import Tool
from smolagents.utils import BASE_BUILTIN_MODULES, AgentError

from . import _codec
from ._errors import InvalidInput, NotFound, SandboxGone, ThawboxError
from ._models import Execution, Result
from ._sandbox import Context, Sandbox

__all__ = ["CodeAgent", "ExecutorLost", "ThawboxExecutor"]

FINAL = "application/vnd.thawbox.final-answer+json"
CALL = "application/vnd.thawbox.call+json"
ANSWER = "application/vnd.thawbox.answer+json"
REPLIES = "/tmp/.thawbox-replies"
SETUP_SECONDS = 120.0
OUTPUT_CHARS = 50_000
RESTARTS_MAX = 3

IMPORT_NAMES = {
    "beautifulsoup4": "bs4", "opencv-python": "cv2", "pillow": "PIL", "python-dateutil": "dateutil", "pyyaml": "yaml",
    "scikit-image": "skimage", "scikit-learn": "sklearn",
}
"""Distributions whose module has another name."""

log = logging.getLogger("thawbox")


class ExecutorLost(BaseException):
    """The sandbox was lost, and no other can be had. Not an Exception: smolagents would tell the model that its code was wrong."""


class _Silent:
    """A logger for those errors of ours that the agent reports by itself."""

    def log(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    log_error = log


def _sources() -> list[str]:
    return [resources.files("thawbox").joinpath(name).read_text("utf-8") for name in ("_codec.py", "_guest.py")]


def _prelude() -> str:
    """A cell that makes the module _thawbox_guest in the guest, and leaves nothing in the user's namespace."""
    return (
        "def _thawbox_setup(sources):\n"
        "    import sys, types\n"
        "    module = sys.modules['_thawbox_guest'] = types.ModuleType('_thawbox_guest')\n"
        "    for source in sources:\n"
        "        exec(compile(source, '<thawbox>', 'exec'), module.__dict__)\n"
        f"_thawbox_setup({_sources()!r})\n"
        "del _thawbox_setup")


def _guest_call(name: str, argument: Any = None) -> str:
    """A cell that calls a function of the guest's module; the value in it is a literal."""
    return f"__import__('sys').modules['_thawbox_guest'].{name}({'' if argument is None else repr(argument)})"


def import_names(packages: Iterable[str]) -> list[str]:
    """What must be importable, of a list of imports or distributions: "numpy.*" is numpy, "*" is nothing."""
    names = []
    for package in packages:
        name = package.split(".")[0].strip()
        if name and name != "*":
            names.append(IMPORT_NAMES.get(name.lower(), name))
    return list(dict.fromkeys(names))


def forbidden_imports(code: str, allowed: Collection[str]) -> list[str]:
    """Modules that the code imports and that are not allowed, by the rules of smolagents' own interpreter."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []  # the guest tells it better, or it is a magic
    wanted: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.append(node.module)

    def is_allowed(name: str) -> bool:
        parts = name.split(".")
        heads = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        return "*" in allowed or any(head in allowed or f"{head}.*" in allowed for head in heads)

    return [name for name in wanted if not is_allowed(name)]


class ThawboxExecutor(PythonExecutor):  # type: ignore[misc]
    """An executor of smolagents (1.23 and newer) in a sandbox of its own, or in one that is given.

    additional_imports: what the agent may import beside the standard ones; each is looked for in the guest at once.
    sandbox: one of the caller's, which is then left alone by cleanup(). Else keywords go to Sandbox.create().
    timeout_seconds: of each action; host_tool_seconds is added where tools run on the host.
    max_output_chars: of an action's output; the middle of more is cut, and the model is told.
    allow_pickle: variables that cannot be passed by value go to the guest as pickles. Pickles of the guest are never read.
    host_tools: which tools run on the host: "auto" (those that cannot be sent), "never" (then they are an error), "always",
      or names (these, and no others). max_host_calls bounds the calls of one action.
    enforce_imports: actions that import something else are refused, as by smolagents' local interpreter.
    fresh_each_run: each agent.run() begins in a new sandbox.
    """

    def __init__(self, additional_imports: Iterable[str] = (), logger: Any = None, *, sandbox: Sandbox | None = None,
                 timeout_seconds: float = 120.0, host_tool_seconds: float = 300.0, max_output_chars: int = OUTPUT_CHARS,
                 allow_pickle: bool = False, host_tools: Literal["auto", "never", "always"] | Collection[str] = "auto",
                 max_host_calls: int = 200, enforce_imports: bool = False, fresh_each_run: bool = False,
                 **create: Any) -> None:
        if isinstance(host_tools, str) and host_tools not in ("auto", "never", "always"):
            raise InvalidInput('host_tools is "auto", "never", "always" or a list of names')
        if sandbox is not None and (create or fresh_each_run):
            raise InvalidInput("with a sandbox of yours there are no options of another one")
        self.additional_imports = list(additional_imports)
        self.logger = logger
        self.timeout_seconds = timeout_seconds
        self.host_tool_seconds = host_tool_seconds
        self.max_output_chars = max_output_chars
        self.allow_pickle = allow_pickle
        self.host_tools = host_tools
        self.max_host_calls = max_host_calls
        self.enforce_imports = enforce_imports
        self.fresh_each_run = fresh_each_run
        self.state: dict[str, Any] = {}
        self.last_execution: Execution | None = None
        self._create = create
        self._is_ours = sandbox is None
        self._given = sandbox
        self._sandbox: Sandbox | None = None
        self._context: Context | None = None
        self._tools: dict[str, Any] = {}
        self._on_host: dict[str, Callable[..., Any]] = {}
        self._variables: dict[str, Any] = {}
        self._restarts = 0
        self._is_used = False
        self._is_closed = False
        self._begin()
        self.installed_packages = self.install_packages(self.additional_imports)

    # ---- its sandbox ----

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of now: files, commands, usage."""
        if self._sandbox is None:
            raise SandboxGone("the executor was cleaned up", "make another one", code="closed")
        return self._sandbox

    def _begin(self) -> None:
        self._sandbox = self._given if self._given is not None else Sandbox.create(**self._create)
        try:
            self._context = self._sandbox.create_code_context()
            self._own(_prelude())
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        context, sandbox, self._context, self._sandbox = self._context, self._sandbox, None, None
        if sandbox is None:
            return
        if self._is_ours:
            sandbox.close()
        elif context is not None:
            context.close()

    def cleanup(self) -> None:
        """Ends the sandbox, where it is the executor's. Idempotent."""
        self._is_closed = True
        self._on_host = {}
        self._end()

    delete = cleanup

    def __enter__(self) -> ThawboxExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.cleanup()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and getattr(self, "_is_ours", False):
            try:
                self.cleanup()
            except Exception:  # at the interpreter's end what it needs may be gone
                log.debug("a sandbox could not be ended", exc_info=True)

    def _tell(self, text: str) -> None:
        if self.logger is not None:
            self.logger.log(text)
        else:
            log.info(text)

    # ---- cells ----

    def _cell(self, code: str, seconds: float, chars: int, keep: list[str], found: dict[str, str]) -> Execution:
        """Runs one; displays of ours are taken out of it, and calls of tools are answered as they come."""
        calls = 0

        def on_result(result: Result) -> None:
            nonlocal calls
            for mime, text in result.extra.items():
                if mime == CALL:
                    calls += 1
                    self._answer_call(text, calls)
                elif mime in (FINAL, ANSWER):
                    found.setdefault(mime, str(text))

        if self._context is None:
            raise SandboxGone("the executor was cleaned up", "make another one", code="closed")
        ex = self._context.run_code(code, timeout_seconds=seconds, max_output_bytes=chars, on_stdout=keep.append,
                                    on_stderr=keep.append, on_result=on_result, raise_on_timeout=False)
        ex.results = [r for r in ex.results if not {CALL, FINAL, ANSWER} & set(r.extra)]
        return ex

    def _own(self, code: str) -> Any:
        """A cell of the executor's: its answer, or None. What goes wrong in it is an error of ours."""
        keep: list[str] = []
        found: dict[str, str] = {}
        ex = self._cell(code, SETUP_SECONDS, OUTPUT_CHARS, keep, found)
        if ex.error:
            raise ThawboxError(f"a cell of the executor failed: {ex.error}", code="setup", partial=ex)
        return _codec.loads(found[ANSWER]) if ANSWER in found else None

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs an action of the agent."""
        self._is_used = True
        self.state["_print_outputs"] = ""
        if self.enforce_imports:
            allowed = [*BASE_BUILTIN_MODULES, *self.additional_imports]
            if wrong := forbidden_imports(code_action, allowed):
                raise self._error(f"Import of {', '.join(wrong)} is not allowed. Authorized imports are: {sorted(allowed)}")
        keep: list[str] = []
        found: dict[str, str] = {}
        seconds = self.timeout_seconds + (self.host_tool_seconds if self._on_host else 0)
        try:
            ex = self._cell(code_action, seconds, self.max_output_chars, keep, found)
        except SandboxGone as error:
            self.state["_print_outputs"] = "".join(keep)
            if FINAL in found:
                return CodeOutput(_codec.loads(found[FINAL]), "".join(keep), True)
            raise self._replace(error) from error
        except ThawboxError as error:
            raise ExecutorLost(f"the action could not be run: {error}") from error
        self.last_execution = ex
        return self._output(ex, "".join(keep), found.get(FINAL))

    run_code_raise_errors = __call__

    def _output(self, ex: Execution, logs: str, answer: str | None) -> CodeOutput:
        self.state["_print_outputs"] = logs
        if answer is not None:  # said before the cell ended, in whatever way
            if ex.context_restarted:
                self._again()
            try:
                return CodeOutput(_codec.loads(answer), logs, True)
            except _codec.CodecError as error:
                raise self._error(f"final_answer() passed something that is no answer: {error}") from error
        if ex.error is not None:
            text = ex.error.report
            if ex.context_restarted:
                self._again()
                text += ("\nThe interpreter had to be restarted: variables and imports of earlier actions are gone, files "
                         "are kept. The tools are there again.")
            raise self._error(text)
        return CodeOutput(self._value(ex), logs, False)

    def _error(self, text: str) -> AgentError:
        return AgentError(text, _Silent())

    def _value(self, ex: Execution) -> Any:
        """Of the last expression: a picture, a table, else its text. Without one, the last picture that was shown."""
        main = ex.result
        shown = main or next((r for r in reversed(ex.results) if r.png or r.jpeg), None)
        if shown is None:
            return None
        for form in ("png", "jpeg"):
            if getattr(shown, form):
                return _picture(shown.bytes_of(form), form) or shown.text
        if main is not None and main.html is not None and self._context is not None:
            is_passed, value = self._own(_guest_call("show_last")) or (False, None)
            if is_passed:
                return value
        return shown.text if shown.text is not None else str(shown)

    # ---- when something is lost ----

    def _again(self) -> None:
        """The interpreter is a new one: it gets what the old one had been given."""
        self._own(_prelude())
        self._send_tools()
        self._send_variables()

    def _replace(self, error: ThawboxError) -> AgentError:
        """Another sandbox in the place of one that was lost; the model is told that it was not its mistake."""
        self._restarts += 1
        if not self._is_ours or self._restarts > RESTARTS_MAX or self._is_closed:
            raise ExecutorLost(f"the sandbox was lost: {error}") from error
        self._end()
        try:
            self._begin()
            self._send_tools()
            self._send_variables()
        except ThawboxError as second:
            raise ExecutorLost(f"the sandbox was lost ({error}) and no other can be had: {second}") from second
        self._tell(f"The sandbox was lost and replaced: {error}")
        return self._error("The sandbox was lost while the action ran, which need not be the fault of the code. It was "
                           "replaced by a fresh one: variables, imports and files of earlier actions are gone, the tools are "
                           "there.")

    # ---- packages ----

    def install_packages(self, additional_imports: Iterable[str]) -> list[str]:
        """Looks whether they are there: a sandbox has no network to install from. NotFound names those that are not."""
        wanted = list(additional_imports)
        names = import_names(wanted)
        missing = self._own(_guest_call("find_missing", names)) if names else []
        if missing:
            self.cleanup()
            raise NotFound(f"the template has no package for: {', '.join(missing)}",
                           "bake a template that has them (packages in template.json, docs/guest.md) and pass template=NAME, "
                           "or Sandbox.install() wheels into a sandbox and pass sandbox=", code="no_package")
        return wanted

    # ---- variables ----

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Passed by value. smolagents calls it once at the beginning of each run."""
        if self.fresh_each_run and self._is_used:
            self._end()
            self._begin()
        self._is_used = True
        self._variables = dict(variables or {})
        self._send_variables()

    def _send_variables(self) -> None:
        safe: dict[str, Any] = {}
        pickled: dict[str, Any] = {}
        for name, value in self._variables.items():
            try:
                safe[name] = value
                _codec.encode(value)
            except _codec.CodecError as error:
                del safe[name]
                if not self.allow_pickle:
                    raise InvalidInput(f"the variable {name!r} cannot be sent to the sandbox: {error}",
                                       "send its data, upload it as a file, or pass allow_pickle=True",
                                       code="not_by_value") from error
                pickled[name] = value
        if safe:
            self._own(_guest_call("set_variables", _codec.dumps(safe)))
        if pickled:
            self._own(_guest_call("set_pickled", base64.b64encode(pickle.dumps(pickled)).decode()))

    # ---- tools ----

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Sent as source, or as stubs of what stays here. The instances are not touched, so a second run is as the first."""
        self._tools = dict(tools)
        self._send_tools()

    def _send_tools(self) -> None:
        self._on_host = {}
        specs = [self._spec(name, tool) for name, tool in self._tools.items()]
        lacks = self._set(specs)
        moved = []
        for name, lack in lacks.items():
            if not lack:
                continue
            why = lack if isinstance(lack, str) else f"the sandbox has no {', '.join(lack)}"
            if self._may_move(name):
                moved.append(self._host_spec(name, self._tools[name], why))
            elif isinstance(lack, str):
                raise InvalidInput(f"the tool {name!r} cannot be made in the sandbox: {why}",
                                   f"let it run on the host: host_tools=[{name!r}]", code="tool")
            else:
                self._tell(f"The tool {name} may fail: {why}")
        if moved:
            self._set(moved)

    def _set(self, specs: list[dict[str, Any]]) -> dict[str, Any]:
        answer = self._own(_guest_call("set_tools", specs)) if specs else {}
        return answer if isinstance(answer, dict) else {}

    def _may_move(self, name: str) -> bool:
        return self.host_tools == "auto" and name in self._tools

    def _spec(self, name: str, tool: Any) -> dict[str, Any]:
        """Where a tool runs, and what the guest needs of it."""
        if name == "final_answer" and type(tool) is FinalAnswerTool:
            return {"name": name, "where": "value", "final": True}
        if self.host_tools == "always" or (not isinstance(self.host_tools, str) and name in self.host_tools):
            return self._host_spec(name, tool, "it was asked for")
        if isinstance(tool, PythonInterpreterTool):  # by default it would be a way out of the sandbox
            raise InvalidInput(f"the tool {name!r} runs code in this process, where nothing holds it",
                               f"leave it out: actions are Python; or ask for it with host_tools=[{name!r}]", code="tool")
        code, why = _source_of(tool)
        if code is not None:
            return {"name": name, "where": "guest", "final": name == "final_answer", "code": code}
        if self.host_tools != "auto":
            raise InvalidInput(f"the tool {name!r} cannot be sent to the sandbox: {why}",
                               f"let it run on the host: host_tools=[{name!r}]", code="tool")
        return self._host_spec(name, tool, why)

    def _host_spec(self, name: str, tool: Any, why: str) -> dict[str, Any]:
        self._on_host[name] = tool
        self._tell(f"The tool {name} runs on the host: {why}")
        return {"name": name, "where": "host", "final": name == "final_answer",
                "doc": str(getattr(tool, "description", "") or "")}

    def _answer_call(self, text: Any, count: int) -> None:
        """A call that the guest has made. What is in it is the guest's: names that are not on the list are refused."""
        try:
            call = json.loads(text)
            number, name = int(call["id"]), str(call["name"])
            args, kwargs = _codec.loads(call["args"])
            if not isinstance(args, list) or not isinstance(kwargs, dict) or number < 0:
                raise CallError
        except (ValueError, TypeError, KeyError, CallError) as error:
            raise ThawboxError("the sandbox has sent a call that is none", code="protocol") from error
        try:
            reply: dict[str, Any] = {"value": _codec.dumps(self._do_call(name, args, kwargs, count))}
        except Exception as error:
            log.info("tool %s failed", name, exc_info=True)
            value = error.args[0] if len(error.args) == 1 else error  # as the exception's maker wrote it
            reply = {"error": {"name": type(error).__name__, "value": str(value)[:10_000]}}
        self.sandbox.files.write(f"{REPLIES}/{number}", json.dumps(reply))

    def _do_call(self, name: str, args: list[Any], kwargs: dict[str, Any], count: int) -> Any:
        tool = self._on_host.get(name)
        if tool is None:
            raise PermissionError(f"there is no tool {name!r} on the host")
        if count > self.max_host_calls:
            raise PermissionError(f"an action may call tools of the host {self.max_host_calls} times")
        log.info("the sandbox calls %s", name)
        value = tool(*args, **kwargs)
        try:
            _codec.encode(value)
        except _codec.CodecError:
            return str(value)
        return value


class CallError(Exception):
    """A call of the guest that has not the right form."""


def _picture(data: bytes, form: str) -> Any:
    """A PIL image; None where the bytes are none, or too many pixels."""
    import PIL.Image

    try:
        image = PIL.Image.open(io.BytesIO(data), formats=[form.upper()])
        if image.width * image.height > _codec.PIXELS_MAX:
            return None
        image.load()
    except Exception:  # of whatever kind: the bytes are the guest's
        return None
    return image


def _source_of(tool: Any) -> tuple[str | None, str]:
    """A tool's source for the guest; or None and why there is none."""
    if not isinstance(tool, Tool):
        return None, f"{type(tool).__name__} is not a tool that has a source"
    if why := _has_state(tool):
        return None, why
    try:
        code = tool.to_dict()["code"]
        ast.parse(code)
    except Exception as error:  # of whatever kind: smolagents looks at foreign code
        return None, f"its source cannot be taken: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
    return str(code), ""


def _has_state(tool: Any) -> str:
    """Why an instance that is made without arguments would not be this one; "": it would."""
    parameters = [p for p in list(inspect.signature(type(tool).__init__).parameters.values())[1:]
                  if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if type(tool).__name__ == "SimpleTool" or not parameters:
        return "" if _plain_state(tool) else "it holds values of its own"
    if any(p.default is p.empty for p in parameters):
        return "it is made with arguments"
    try:
        other = type(tool)()
    except Exception as error:
        return f"one without arguments cannot be made: {error}"
    same = vars(tool).keys() == vars(other).keys() and all(
        _is_same(value, vars(other)[name]) for name, value in vars(tool).items() if name != "is_initialized")
    return "" if same else "it is made with arguments"


def _plain_state(tool: Any) -> bool:
    """It has nothing that its class does not set by itself."""
    return all(name == "is_initialized" or name in ("name", "description", "inputs", "output_type", "output_schema")
               for name in vars(tool))


def _is_same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    try:
        return bool(a == b) or not isinstance(a, (str, int, float, bytes, tuple, list, dict, set, frozenset, type(None)))
    except Exception:
        return False


class CodeAgent(smolagents.CodeAgent):  # type: ignore[misc]
    """smolagents' CodeAgent with one more `executor_type`: "thawbox", whose keywords are ThawboxExecutor's.

    Unlike an agent with `executor=`, one that is saved and loaded again has its sandbox again.
    """

    def create_python_executor(self) -> Any:
        if self.executor_type != "thawbox":
            return super().create_python_executor()
        return ThawboxExecutor(self.additional_authorized_imports, self.logger, **(self.executor_kwargs or {}))
