# SPDX-License-Identifier: Apache-2.0
"""The executor of smolagents: what its own remote executors are tested for, and each defect of theirs that is known.

Models are scripted, nothing needs a network. What people report of the others (issues and pull requests of
huggingface/smolagents), and the test that shows it is not so here:

    2050, 1856  a port, or a container, that is left behind  test_own_daemon: test_nothing_is_left_of_a_killed_agent
    1739, 2374  tools of MCP                                 test_tools_of_mcp, test_tools_without_source
    1345, 913   functions with @tool                         test_tools_are_sent_as_source
    1743        not ready yet when it is asked               test_ten_agents_at_once (each acts as soon as it is made)
    1845        services of the host                         test_sandbox: test_the_hosts_services_are_out_of_reach
    1637        pickles of the guest                         test_hostile_final_answer, test_pickle_when_asked, test_codec
    1905        a final answer that is caught                test_final_answer_is_not_lost
    1730        another version of the vendor's client       test_e2b_executor_of_smolagents_unchanged; ours has none
    244         no module smolagents in the sandbox          test_default_tools
    392         managed agents                               test_managed_agents
    25          no way without a service                     all: there is none
    1024, 2722  executors of others                          test_the_entry_point_is_a_factory, agent_with()
    2147        "!" is no syntax; installed, and not found   test_pictures_and_tables; test_sandbox: test_install
    1856        standard modules are given to pip            test_packages_are_looked_for_and_not_installed
    1422        a sandbox that outlives its agent            test_cleanup_is_idempotent_and_leaves_nothing
    E2B 1381    a sandbox that is gone early                 test_a_lost_sandbox_is_replaced_and_the_model_is_told
    2464        code that hangs                              test_deadline, test_deadline_of_one_that_does_not_listen
"""
from __future__ import annotations

import concurrent.futures
import gc
import json
import os
import re
import sys
import threading
import time
from textwrap import dedent

import pandas as pd
import PIL.Image
import pytest
import smolagents.agents
import thawbox.smolagents
from scripted import Scripted
from smolagents import CodeAgent, FinalAnswerTool, PythonInterpreterTool, Tool, VisitWebpageTool, WebSearchTool, tool
from smolagents.utils import AgentError
from thawbox import InvalidInput, NotFound, Sandbox
from thawbox.smolagents import ExecutorLost, ThawboxExecutor, forbidden_imports, import_names


@pytest.fixture
def executor(daemon):
    with ThawboxExecutor(additional_imports=["pillow", "numpy"]) as made:
        made.send_tools({"final_answer": FinalAnswerTool()})
        yield made


def agent_with(executor, *replies, **options) -> CodeAgent:
    return CodeAgent(tools=options.pop("tools", []), model=Scripted(*replies), executor=executor, verbosity_level=0,
                     max_steps=options.pop("max_steps", 6), **options)


# ---- the tests of smolagents' own remote executors, by what they ask ----

def test_state_persistence(executor):
    executor("import numpy as np; a = 2")
    assert "1.41421" in executor("print(np.sqrt(a))").logs


def test_final_string(executor):
    output = executor('final_answer("This is the final answer")')
    assert output.output == "This is the final answer" and output.is_final_answer


def test_final_multiline(executor):
    output = executor(dedent('''
        result = "This is the final answer"
        final_answer(f"""{result}
        over two lines""")'''))
    assert output.output == "This is the final answer\nover two lines" and output.is_final_answer


def test_final_image(executor):
    output = executor('from PIL import Image\nimage = Image.new("RGB", (10, 10), (255, 0, 0))\nfinal_answer(image)')
    assert isinstance(output.output, PIL.Image.Image) and output.output.size == (10, 10)


def test_syntax_error(executor):
    with pytest.raises(AgentError, match="SyntaxError"):
        executor('print("Missing Parenthesis')


@pytest.mark.parametrize("code, answer", [
    ("final_answer(5 + 3)", 8),
    ("def f(n):\n    if n > 2: final_answer(n)\n    f(n + 1)\nf(0)", 3),
    ("for i in range(5):\n    if i == 3: final_answer({'i': i, (1, 2): {3}})", {"i": 3, (1, 2): {3}}),
])
def test_final_answer_patterns(executor, code, answer):
    output = executor(code)
    assert output.is_final_answer and output.output == answer


class Shouting(FinalAnswerTool):
    def forward(self, answer: str) -> str:
        return "CUSTOM: " + answer.upper()


class WithMore(FinalAnswerTool):
    inputs = {"answer1": {"type": "string", "description": "one"},
              "answer2": {"type": "string", "description": "two"}}

    def forward(self, answer1: str, answer2: str) -> str:
        return answer1 + "CUSTOM" + answer2


@pytest.mark.parametrize("kind, code, answer", [
    (Shouting, "final_answer('x')", "CUSTOM: X"), (WithMore, "final_answer('a', answer2='b')", "aCUSTOMb"),
])
def test_custom_final_answer(daemon, kind, code, answer):
    with ThawboxExecutor() as executor:
        executor.send_tools({"final_answer": kind()})
        output = executor(code)
        assert output.is_final_answer and output.output == answer


# ---- final answers that theirs lose ----

@pytest.mark.parametrize("code", [
    "try:\n    final_answer('kept')\nexcept Exception:\n    pass",
    "try:\n    final_answer('kept')\nexcept:\n    pass",
    "def f():\n    try:\n        final_answer('kept')\n    finally:\n        return 5\nf()",
    "final_answer('kept') if True else None\nfinal_answer('second')",
    "try: final_answer('kept')\nexcept BaseException: pass\nfinal_answer('second')",
    "import threading\nt = threading.Thread(target=final_answer, args=('kept',))\nt.start(); t.join()",
    "try: final_answer('kept')\nexcept BaseException: pass\nimport os; os._exit(3)",
], ids=["except Exception", "bare except", "finally: return", "twice", "twice, caught", "thread", "dies afterwards"])
def test_final_answer_is_not_lost(executor, code):
    output = executor(code)
    assert output.is_final_answer and output.output == "kept"


def test_final_answer_by_value(executor):
    assert executor("final_answer(7 ** 10000)").output == 7 ** 10000
    frame = executor("import pandas as pd\nfinal_answer(pd.DataFrame({'a': [1, 2], 'b': ['x', None]}))").output
    assert isinstance(frame, pd.DataFrame) and frame["a"].tolist() == [1, 2]
    assert executor("final_answer({'__type__': 'bytes'})").output == {"__type__": "bytes"}, "a dictionary stays one"
    assert executor("import matplotlib.pyplot as plt\nfig = plt.figure(); final_answer(fig)").output.format == "PNG"
    assert len(executor("final_answer('x' * 2_000_000)").output) == 2_000_000


def test_final_answer_that_cannot_be_passed(executor):
    with pytest.raises(AgentError, match="cannot be passed by value"):
        executor("final_answer(object())")
    with pytest.raises(AgentError, match="write it to a file"):
        executor("final_answer('x' * 20_000_000)")
    assert executor("final_answer(1)").output == 1


def test_hostile_final_answer(executor):
    """What a guest says in the answer's place is refused, and nothing of it is unpickled or taken for code."""
    for text in ('{"t":"pickle","v":"gASVCgAAAAAAAABLAS4="}', "pickle:gASVCgAAAAAAAABLAS4=", "[" * 5000,
                 '{"t":"ndarray","v":["<i8",[1000000000],"AAAAAAAAAAA="]}'):
        code = f"from IPython.display import display\ndisplay({{'{thawbox.smolagents.FINAL}': {text!r}}}, raw=True)"
        with pytest.raises(AgentError, match="no answer"):
            executor(code)
    assert executor("2 + 2").output == "4"


# ---- outputs and logs ----

def test_logs_are_kept_when_a_step_fails(executor):
    with pytest.raises(AgentError, match="ZeroDivisionError") as caught:
        executor("import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')\n1 / 0")
    assert executor.state["_print_outputs"].splitlines() == ["one", "two", "three"], "in the order in which they came"
    assert "\x1b" not in str(caught.value) and "Traceback" in str(caught.value)


def test_the_next_cell_after_an_error_runs(executor):
    for number in range(5):
        with pytest.raises(AgentError):
            executor("1 / 0")
        assert executor(f"x = {number}\nprint(x)").logs == f"{number}\n"


def test_output_is_bounded_and_the_model_is_told(daemon):
    with ThawboxExecutor(max_output_chars=5000) as executor:
        logs = executor("print('begin')\nfor i in range(100_000): print(i)\nprint('end')").logs
        assert len(logs) < 6000 and logs.startswith("begin\n") and "\nend\n" in logs and "too long" in logs


def test_pictures_and_tables(executor):
    assert executor("from PIL import Image\nImage.new('RGB', (4, 5))").output.size == (4, 5)
    output = executor("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
    assert isinstance(output.output, PIL.Image.Image) and not output.is_final_answer
    frame = executor("import pandas as pd\npd.DataFrame({'a': [1, 2]})").output
    assert isinstance(frame, pd.DataFrame) and frame["a"].sum() == 3
    assert executor("'text'").output == "text" and executor("x = 1").output is None
    assert executor("!echo shell").logs.strip() == "shell"
    assert executor("import asyncio\nawait asyncio.sleep(0, 'awaited')").output == "awaited"


# ---- time, memory, loss ----

def test_deadline(daemon):
    with ThawboxExecutor(timeout_seconds=2) as executor:
        executor("x = 5")
        with pytest.raises(AgentError, match="TimeoutError: the cell ran longer than 2 s: interrupted; its variables are kept"):
            executor("print('so far')\nwhile True: pass")
        assert executor.state["_print_outputs"] == "so far\n" and executor("x").output == "5"


def test_deadline_of_one_that_does_not_listen(daemon):
    """Its interpreter is replaced, and the next one has the tools and variables again."""
    with ThawboxExecutor(timeout_seconds=5) as executor:
        executor.send_variables({"n": 7})
        executor.send_tools({"double": double})
        with pytest.raises(AgentError, match="(?s)TimeoutError.*had to be restarted"):
            executor("import signal\nprint('deaf')\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass")
        assert executor.state["_print_outputs"] == "deaf\n" and executor("double(n)").output == "14"


def test_a_tool_of_the_host_has_time_of_its_own(daemon):
    class Slow(Keyed):
        def forward(self, what: str) -> str:
            time.sleep(8)
            return what

    with ThawboxExecutor(timeout_seconds=5, host_tool_seconds=120) as executor:
        executor.send_tools({"keyed": Slow("k")})
        assert executor("keyed('slow')").output == "slow"
    with ThawboxExecutor(timeout_seconds=5, host_tool_seconds=0) as executor:
        executor.send_tools({"keyed": Slow("k")})
        with pytest.raises(AgentError, match="TimeoutError"):
            executor("keyed('slow')")
        assert executor("1 + 1").output == "2"


def test_interpreter_that_dies_gets_its_tools_back(daemon):
    with ThawboxExecutor() as executor:
        executor.send_variables({"n": 7})
        executor.send_tools({"final_answer": FinalAnswerTool(), "double": double})
        executor("mine = 1")
        with pytest.raises(AgentError, match="had to be restarted.*tools are there again") as caught:
            executor("import os\nos._exit(3)")
        assert "exited with code 3" in str(caught.value)
        assert executor("double(n)").output == "14" and executor("'mine' in globals()").output == "False"


def test_a_lost_sandbox_is_replaced_and_the_model_is_told(daemon):
    executor = ThawboxExecutor()
    executor.send_tools({"final_answer": FinalAnswerTool()})
    first = executor.sandbox.id
    agent = agent_with(executor, "open('f', 'w').write('x')", kill_first(executor), check_told, "final_answer('done')")
    assert agent.run("go") == "done" and executor.sandbox.id != first
    executor.cleanup()


def kill_first(executor):
    def reply(_: str) -> str:
        executor.sandbox._line.http.send(thawbox._wire.kill(executor.sandbox.id))
        return "1 + 1"

    return reply


def check_told(seen: str) -> str:
    assert "replaced by a fresh one" in seen and "need not be the fault" in seen
    return "import os\nprint(os.path.exists('f'))"


def test_a_loss_that_cannot_be_made_good_ends_the_run(daemon):
    """Fed to the model as its own mistake, it would go on until its steps are used up."""
    with Sandbox.create() as sandbox:
        executor = ThawboxExecutor(sandbox=sandbox)
        agent = agent_with(executor, kill_first(executor), "1", "1", "1")
        with pytest.raises(ExecutorLost, match="lost"):
            agent.run("go")
        assert len(agent.model.replies) == 3, "it was not asked again"


# ---- tools ----

@tool
def double(n: int) -> int:
    """Doubles.

    Args:
        n: what
    """
    return 2 * n


@tool
def guarded(n: int) -> str:
    """Has an import that is not there, and is not needed.

    Args:
        n: what
    """
    try:
        import package_that_nobody_has  # noqa: F401
    except ImportError:
        return f"without {n}"
    return "with"


class Keyed(Tool):
    name = "keyed"
    description = "needs a secret"
    inputs = {"what": {"type": "string", "description": "what"}}
    output_type = "string"

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def forward(self, what: str) -> str:
        if what == "fail":
            raise KeyError("of the host")
        return f"{what} by {len(self.key)} letters"


class WithDefault(Tool):
    name = "with_default"
    description = "has an argument"
    inputs = {"what": {"type": "string", "description": "what"}}
    output_type = "string"

    def __init__(self, engine: str = "one") -> None:
        super().__init__()
        self.engine = engine

    def forward(self, what: str) -> str:
        import socket

        return f"{self.engine} {what} at {socket.gethostname()}"


@pytest.mark.parametrize("tool_, why", [
    (double, ""), (guarded, ""), (FinalAnswerTool(), ""), (VisitWebpageTool(), ""), (WithDefault(), ""),
    (WithDefault("two"), "made with arguments"), (Keyed("secret"), "made with arguments"), (len, "no source|has a source"),
], ids=lambda value: getattr(value, "name", None))
def test_which_tools_can_be_sent(tool_, why):
    """Those that a class without arguments makes again; the instance is looked at and left as it is."""
    before = dict(vars(tool_)) if hasattr(tool_, "__dict__") else {}
    code, reason = thawbox.smolagents._source_of(tool_)
    assert (code is None) == bool(why) and re.search(why, reason)
    assert not before or vars(tool_) == before
    assert "secret" not in (code or "")


def test_tools_are_sent_as_source(executor):
    executor.send_tools({"final_answer": FinalAnswerTool(), "double": double, "guarded": guarded})
    assert executor("double(4), guarded(1)").output == "(8, 'without 1')"
    assert not executor._on_host
    assert executor("import time, queue, datetime\ntime.time() > 0").output == "True", "no name was rebound"


def test_tools_with_arguments_and_secrets_stay_on_the_host(executor):
    """Theirs are rebuilt without arguments, or refused."""
    secret = "s3cr3t-key-of-the-host"
    executor.send_tools({"final_answer": FinalAnswerTool(), "keyed": Keyed(secret)})
    assert executor("keyed('signed')").output == f"signed by {len(secret)} letters"
    with pytest.raises(AgentError, match="KeyError: 'of the host'"):
        executor("keyed('fail')")
    assert executor("try:\n    keyed(what='fail')\nexcept KeyError:\n    print('caught')").logs == "caught\n"
    found = executor.sandbox.exec(f"grep -rl {secret} /home /tmp /usr/lib/thawbox 2>/dev/null | head -1", timeout_seconds=300)
    assert found.stdout == "", "the secret is nowhere in the guest"
    name = executor("import socket\nsocket.gethostname()").output
    executor.send_tools({"with_default": WithDefault()})
    assert executor("with_default('x')").output == f"one x at {name}" and not executor._on_host
    executor.send_tools({"with_default": WithDefault("two")})
    assert executor("with_default('x')").output.startswith("two x at ") and name not in executor("with_default('x')").output


def test_tools_without_source(executor):
    """Of MCP they are made when a server is asked: there is no source, and theirs fail at it."""
    def make() -> Tool:
        kind = type("Made", (Tool,), {"name": "made", "description": "d", "output_type": "integer",
                                      "inputs": {"n": {"type": "integer", "description": "n"}},
                                      "forward": eval("lambda self, n: n + 1"), "skip_forward_signature_validation": True})
        return kind()

    executor.send_tools({"final_answer": FinalAnswerTool(), "made": make()})
    assert executor("made(41)").output == "42" and "made" in executor._on_host


MCP_SERVER = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("numbers")

@server.tool()
def treble(n: int) -> str:
    \"\"\"Three times n.\"\"\"
    return str(3 * n)

server.run("stdio")
"""


def test_tools_of_mcp(executor, tmp_path):
    """Of a real server: the agent's code calls them like any others. Theirs refuse them when they are sent."""
    from mcp import StdioServerParameters
    from smolagents import MCPClient

    (tmp_path / "server.py").write_text(MCP_SERVER)
    server = StdioServerParameters(command=sys.executable, args=[str(tmp_path / "server.py")], env=dict(os.environ))
    with MCPClient(server, structured_output=False) as tools:
        agent = agent_with(executor, "final_answer(treble(n=14) + '!')", tools=tools)
        assert agent.run("go") == "42!" and set(executor._on_host) == {"treble"}


def test_default_tools(executor):
    """Sent where the sandbox has what they import (it has no smolagents), else called on the host, and said so."""
    told: list[str] = []
    executor._tell = told.append
    executor.send_tools({"final_answer": FinalAnswerTool(), "web_search": WebSearchTool(), "visit_webpage": VisitWebpageTool()})
    code = "import sys\n[callable(web_search), callable(visit_webpage), hasattr(sys.modules['smolagents'], '__file__')]"
    assert executor(code).output == "[True, True, False]", "what is called smolagents there is a stand-in of ours"
    assert "web_search" not in executor._on_host
    assert "visit_webpage" in executor._on_host and "markdownify" in "".join(told)


def test_no_tool_runs_code_of_the_guest_in_this_process(executor):
    """That interpreter of smolagents is not a boundary; one who wants it says so."""
    for host_tools in ("auto", "never", ["double"]):
        executor.host_tools = host_tools
        with pytest.raises(InvalidInput, match="runs code in this process"):
            executor.send_tools({"python_interpreter": PythonInterpreterTool()})
    executor.host_tools = ["python_interpreter"]
    executor.send_tools({"python_interpreter": PythonInterpreterTool()})
    assert "4" in executor("python_interpreter('2 + 2')").output


def test_calls_of_the_host_are_bounded(daemon):
    calls: list[str] = []

    class Counting(Keyed):
        def forward(self, what: str) -> str:
            calls.append(what)
            return what

    with ThawboxExecutor(max_host_calls=3) as executor:
        executor.send_tools({"keyed": Counting("k")})
        with pytest.raises(AgentError, match="PermissionError.*3 times"):
            executor("for i in range(10): keyed(str(i))")
        assert calls == ["0", "1", "2"]
        forged = {"id": 99, "name": "cleanup", "args": "[[],{\"t\":\"dict\",\"v\":[]}]"}
        executor(f"import threading\nguest = __import__('sys').modules['_thawbox_guest']\n"
                 f"guest.publish('{thawbox.smolagents.CALL}', {json.dumps(forged)!r})")
        reply = json.loads(executor.sandbox.files.read(f"{thawbox.smolagents.REPLIES}/99", "text"))
        assert reply["error"]["name"] == "PermissionError" and calls == ["0", "1", "2"]


def test_where_tools_run_can_be_said(daemon):
    with ThawboxExecutor(host_tools="never") as executor, pytest.raises(InvalidInput, match="keyed.*made with arguments"):
        executor.send_tools({"keyed": Keyed("k")})
    with ThawboxExecutor(host_tools=["double"]) as executor:
        executor.send_tools({"double": double, "guarded": guarded})
        assert executor("double(4), guarded(2)").output == "(8, 'without 2')" and set(executor._on_host) == {"double"}
    with pytest.raises(InvalidInput):
        ThawboxExecutor(host_tools="some")


def test_managed_agents(executor):
    """Theirs refuse them; here they run on the host, and the guest calls them by name."""
    helper = CodeAgent(tools=[], model=Scripted("final_answer('of the helper')"), name="helper", description="helps",
                       verbosity_level=0)
    agent = agent_with(executor, "answer = helper(task='help')\nfinal_answer(answer)", managed_agents=[helper])
    assert "of the helper" in agent.run("go")


# ---- variables and runs ----

def test_a_second_run_works(executor):
    """Theirs cannot finish a second run on one agent."""
    agent = agent_with(executor, "kept = 5\nfinal_answer('one')", "final_answer(('two', kept))", "final_answer('three')")
    assert agent.run("first") == "one"
    assert agent.run("second") == ("two", 5) and agent.run("third", reset=False) == "three"
    assert type(agent.tools["final_answer"]) is FinalAnswerTool, "the agent's own tool is not touched"


def test_variables(executor):
    frame = pd.DataFrame({"a": [1, 2, 3]})
    agent = agent_with(executor, "final_answer((df['a'].sum(), picture.size, sorted(names)))")
    picture = PIL.Image.new("RGB", (3, 4))
    assert agent.run("go", additional_args={"df": frame, "picture": picture, "names": {"x", "y"}}) == (6, (3, 4), ["x", "y"])
    with pytest.raises(InvalidInput, match="'lock' cannot be sent.*allow_pickle"):
        executor.send_variables({"lock": threading.Lock()})


def test_pickle_when_asked(daemon):
    with ThawboxExecutor(allow_pickle=True) as executor:
        executor.send_variables({"r": range(3), "n": 1})
        assert executor("list(r), n").output == "([0, 1, 2], 1)"
        with pytest.raises(AgentError, match="cannot be passed by value"):  # never in the other direction
            executor.send_tools({"final_answer": FinalAnswerTool()})
            executor("final_answer(r)")


def test_fresh_each_run(daemon):
    with ThawboxExecutor(fresh_each_run=True) as executor:
        agent = agent_with(executor, "x = 1\nfinal_answer(1)", "final_answer('x' in globals())")
        agent.run("one")
        first = executor.sandbox.id
        assert agent.run("two") is False and executor.sandbox.id != first


# ---- packages and imports ----

def test_packages_are_looked_for_and_not_installed(daemon):
    """Theirs run pip at the start, which fails without a word, or takes 8 s without a network."""
    with pytest.raises(NotFound, match="torch, package_that_nobody_has") as caught:
        ThawboxExecutor(["numpy.*", "PIL", "os", "torch", "package_that_nobody_has", "*"])
    assert "bake" in caught.value.remedy


def test_names_of_imports():
    assert import_names(["scikit-learn", "pillow", "numpy.linalg", "numpy", "*"]) == ["sklearn", "PIL", "numpy"]
    assert forbidden_imports("import a.b\nfrom c import d\nfrom . import e", ["a.*", "math"]) == ["c"]
    assert forbidden_imports("import x", ["*"]) == [] and forbidden_imports("import", []) == []


def test_imports_can_be_enforced(daemon):
    with ThawboxExecutor(["numpy"], enforce_imports=True) as executor:
        assert executor("import numpy.linalg, math\n1").output == "1"
        with pytest.raises(AgentError, match="Import of os is not allowed"):
            executor("import os")


# ---- life ----

def test_cleanup_is_idempotent_and_leaves_nothing(daemon):
    executor = ThawboxExecutor()
    executor.cleanup()
    executor.cleanup()
    assert json.loads(daemon.get("/v2/sandboxes")[1]) == []
    with pytest.raises((AgentError, ExecutorLost)):
        executor("1")
    executor = ThawboxExecutor()
    del executor
    gc.collect()
    assert json.loads(daemon.get("/v2/sandboxes")[1]) == []
    with agent_with(ThawboxExecutor(), "final_answer(1)") as agent:
        assert agent.run("go") == 1
    assert json.loads(daemon.get("/v2/sandboxes")[1]) == []


def test_options_of_its_sandbox(daemon):
    with ThawboxExecutor(env={"GIVEN": "1"}, metadata={"task": "7"}, ttl_seconds=600) as executor:
        assert executor("import os\nos.environ['GIVEN']").output == "1"
        info = executor.sandbox.info()
        assert info.metadata == {"task": "7"} and (info.ends - info.started).total_seconds() == pytest.approx(600, abs=5)


def test_a_sandbox_of_the_caller_is_left_alone(daemon):
    with Sandbox.create() as sandbox:
        sandbox.files.write("data.txt", "42")
        with ThawboxExecutor(sandbox=sandbox) as executor:
            assert executor("open('data.txt').read()").output == "42"
        assert sandbox.run_code("1 + 1").text == "2"
        with pytest.raises(InvalidInput):
            ThawboxExecutor(sandbox=sandbox, ttl_seconds=5)


def test_an_agent_that_is_saved_keeps_its_sandbox(daemon, monkeypatch):
    """With executor= smolagents writes "local" there, and the agent would be loaded without a sandbox."""
    agent = thawbox.smolagents.CodeAgent(tools=[], model=Scripted("final_answer(1)"), executor_type="thawbox",
                                         executor_kwargs={"timeout_seconds": 60}, verbosity_level=0)
    assert isinstance(agent.python_executor, ThawboxExecutor) and agent.run("go") == 1
    agent.cleanup()
    saved = json.loads(json.dumps(agent.to_dict()))
    monkeypatch.setitem(smolagents.agents.MODEL_REGISTRY, "Scripted", LoadedModel)
    again = thawbox.smolagents.CodeAgent.from_dict(saved)
    assert isinstance(again.python_executor, ThawboxExecutor) and again.python_executor.timeout_seconds == 60
    assert again.run("go") == "loaded"
    again.cleanup()
    with pytest.raises(ValueError, match="thawbox"):  # by smolagents' own class: an error, and not an agent without a sandbox
        CodeAgent.from_dict(saved)


class LoadedModel(Scripted):
    @classmethod
    def from_dict(cls, _: dict) -> Scripted:
        return cls("final_answer('loaded')")


def test_the_entry_point_is_a_factory(daemon):
    """Newer releases of smolagents will call it so: the agent's imports and logger, then keywords."""
    from smolagents.monitoring import AgentLogger, LogLevel

    executor = ThawboxExecutor(["numpy"], AgentLogger(level=LogLevel.OFF), timeout_seconds=60)
    assert executor("1 + 1").output == "2" and bool(executor)
    executor.cleanup()


# ---- agents ----

def test_an_agent_corrects_itself(executor):
    """It fails with a KeyError, reads the traceback, lists the columns and tries again, in one context."""
    executor.sandbox.files.write("sales.csv", "city,amount_eur\nOslo,3\nRome,4\n")

    def look(seen: str) -> str:
        assert "KeyError: 'amount'" in seen and "loaded 2 rows" in seen, "traceback and print of the failed step"
        return "print(list(df.columns))"

    def again(seen: str) -> str:
        assert "['city', 'amount_eur']" in seen
        return "final_answer(int(df['amount_eur'].sum()))"

    agent = agent_with(executor, "import pandas as pd\ndf = pd.read_csv('sales.csv')\nprint(f'loaded {len(df)} rows')\n"
                                 "df['amount'].sum()", look, again)
    assert agent.run("the sum of the amounts") == 7


def test_ten_agents_at_once(daemon):
    def one(number: int):
        with agent_with(ThawboxExecutor(), f"n = {number}\nopen('mine-{number}', 'w').write('x')",
                        "import glob\nfinal_answer((n, glob.glob('mine-*')))") as agent:
            return agent.run("go")

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert list(pool.map(one, range(10))) == [(n, [f"mine-{n}"]) for n in range(10)]


def test_e2b_executor_of_smolagents_unchanged(daemon):
    """Its own executor_type="e2b", by the environment alone. It asks pip for packages that are there."""
    agent = CodeAgent(tools=[], model=Scripted("x = 2", "final_answer(x + 3)"), executor_type="e2b", verbosity_level=0)
    try:
        assert agent.run("go") == 5
    finally:
        agent.cleanup()
