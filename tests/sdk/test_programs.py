# SPDX-License-Identifier: Apache-2.0
"""Two programs as they are published for other sandboxes, with another import and a scripted model."""
from __future__ import annotations

import importlib.util
import io
import sys

from conftest import ROOT
from scripted import Scripted
from smolagents import CodeAgent
from smolagents.local_python_executor import CodeOutput, PythonExecutor
from thawbox import Sandbox
from thawbox.smolagents import ThawboxExecutor

# ---- 1: an executor of one's own, over a persistent context ----

MAX_OUTPUT = 8000


class MicroVMExecutor(PythonExecutor):
    """What an author writes: a context for the agent's steps, output that is cut and told, a sandbox per task."""

    def __init__(self, packages: list[str]) -> None:
        self.sb = Sandbox.create(template="code-interpreter", ttl_seconds=1800)
        self.ctx = self.sb.create_code_context(language="python")
        if packages:
            self.installed = self.sb.exec("pip install " + " ".join(packages), timeout_seconds=300)

    def send_tools(self, tools) -> None:
        self.tools = tools
        self.ctx.run_code("class Done(BaseException): pass\n"
                          "def final_answer(value):\n    print('FINAL:', value)\n    raise Done()", timeout_seconds=120)

    def send_variables(self, variables) -> None:
        for name, value in variables.items():
            self.ctx.run_code(f"{name} = {value!r}", timeout_seconds=120)

    def __call__(self, code: str) -> CodeOutput:
        ex = self.ctx.run_code(code, timeout_seconds=120)
        output = ex.logs.get("stdout", "") + ex.logs.get("stderr", "")
        if len(output) > MAX_OUTPUT:
            output = output[:MAX_OUTPUT] + "\n[output truncated]"
        if "FINAL: " in output:
            return CodeOutput(output.split("FINAL: ")[1].strip(), output, True)
        if ex.error:
            raise RuntimeError(output + ex.error.traceback)
        return CodeOutput(ex.text, output or "(no output)", False)

    def cleanup(self) -> None:
        self.ctx.close()
        self.sb.kill()


def run_task(model, task: str) -> tuple[object, MicroVMExecutor]:
    executor = MicroVMExecutor(["numpy", "pandas"])
    agent = CodeAgent(tools=[], model=model, executor=executor, verbosity_level=0)
    try:
        return agent.run(task), executor
    finally:
        executor.cleanup()


def test_a_microvm_executor(daemon):
    def after_import(seen: str) -> str:
        assert "(no output)" in seen
        return "print('x' * 20_000)"

    def after_flood(seen: str) -> str:
        assert "[output truncated]" in seen
        return "final_answer(np.arange(4).sum())"

    answer, executor = run_task(Scripted("import numpy as np", after_import, after_flood), "sum")
    assert answer == "6"
    assert isinstance(executor.installed.exit_code, int)
    executor.cleanup()


# ---- 2: a data analysis with files in and out ----

CSV = b"month,revenue\n1,10\n2,30\n3,20\n"


def test_analysis_of_a_file(daemon, tmp_path):
    (tmp_path / "data.csv").write_bytes(CSV)
    sandbox = Sandbox(api_key="e2b_00")
    try:
        with open(tmp_path / "data.csv", "rb") as f:
            remote_path = sandbox.upload_file(f)
        # As published, agent and sandbox are two: executor_type makes a second one, in which the file is not. Here
        # the agent is told which it is to work in.
        agent = CodeAgent(
            tools=[],
            model=Scripted(
                f"import pandas as pd\ndf = pd.read_csv({remote_path!r})\nprint(df.describe())",
                "import matplotlib.pyplot as plt\ndf.plot(x='month', y='revenue')\nplt.savefig('chart.png')\n"
                "final_answer('chart.png')"),
            additional_authorized_imports=["pandas", "matplotlib.*"],
            executor=ThawboxExecutor(["pandas", "matplotlib.*"], sandbox=sandbox), verbosity_level=0)
        assert agent.run(f"Read {remote_path}, plot revenue by month, save it as chart.png") == "chart.png"
        names = [entry.name for entry in sandbox.files.list(".")]
        assert "chart.png" in names and "data.csv" in names
        content = sandbox.files.read("chart.png")
        with open(tmp_path / "chart.png", "wb") as out:
            out.write(content)
    finally:
        sandbox.close()
    import PIL.Image

    assert PIL.Image.open(io.BytesIO((tmp_path / "chart.png").read_bytes())).format == "PNG"


def test_the_same_with_the_e2b_executor(daemon):
    """`executor_type="e2b"` and nothing else: smolagents' own class, with its own client, against this daemon."""
    agent = CodeAgent(tools=[], model=Scripted("import statistics", "final_answer(statistics.mean([1, 2, 6]))"),
                      additional_authorized_imports=["statistics"], executor_type="e2b", verbosity_level=0)
    try:
        assert agent.run("the mean") == 3
    finally:
        agent.cleanup()


# ---- the example ----

def test_the_example(daemon, tmp_path, monkeypatch, capsys):
    """examples/agent/agent.py as it is, but for its model."""
    spec = importlib.util.spec_from_file_location("agent_example", ROOT / "examples" / "agent" / "agent.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "InferenceClientModel", lambda: Scripted(
        "import pandas as pd\ndf = pd.read_csv('data.csv')", "import matplotlib.pyplot as plt\n"
        "df.plot(x='month', y='revenue')\nplt.savefig('chart.png')\nfinal_answer(int(df.revenue.sum()))"))
    monkeypatch.setattr(sys, "argv", ["agent.py", str(tmp_path / "data.csv"), "the sum, and a chart"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_bytes(CSV)
    example.main()
    out = capsys.readouterr().out
    assert "60" in out and "cost: 0.0" in out
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
