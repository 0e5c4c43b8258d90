#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A data analysis by a smolagents agent in a sandbox: a file goes in, a chart comes out.

    pip install './sdk/python[smolagents]'
    HF_TOKEN=... examples/agent/agent.py data.csv "revenue by month, as a chart"
    OPENAI_API_KEY=... examples/agent/agent.py --litellm gpt-4.1-mini data.csv "..."   # smolagents[litellm]
"""
from __future__ import annotations

import argparse

from smolagents import CodeAgent, InferenceClientModel, LiteLLMModel

from thawbox import Pricing, Sandbox
from thawbox.smolagents import ThawboxExecutor

IMPORTS = ["pandas", "numpy.*", "matplotlib.*"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="what is to be analysed")
    parser.add_argument("task", help="what is to be found out")
    parser.add_argument("--litellm", metavar="MODEL", help="a model of LiteLLM's; else the default of Hugging Face's inference")
    options = parser.parse_args()
    model = LiteLLMModel(model_id=options.litellm) if options.litellm else InferenceClientModel()
    with Sandbox.create(ttl_seconds=1800) as sandbox:
        path = sandbox.upload_file(options.file)
        with CodeAgent(tools=[], model=model, additional_authorized_imports=IMPORTS,
                       executor=ThawboxExecutor(IMPORTS, sandbox=sandbox)) as agent:
            print(agent.run(f"{options.task}\nThe data are in {path}. Save a chart as chart.png."))
        if sandbox.files.exists("chart.png"):
            sandbox.download("chart.png", "chart.png")
        print(f"cost: {sandbox.usage().cost(Pricing(vcpu_hour=0.05, gib_hour=0.01)):.6f}")


if __name__ == "__main__":
    main()
