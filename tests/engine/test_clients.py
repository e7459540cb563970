"""Real clients against the real engine, set up as `dflash-deploy connect` says."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from dflash_deploy.assets import asset
from dflash_deploy.bench import load_prompts
from dflash_deploy.connect import KEY_VARIABLE
from tests.support.cli import dflash
from tests.support.clients import client
from tests.support.hub import Hub
from tests.support.proxies import AddsTheKey, before
from tests.support.server import Server

ASKED = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
"""What the tiny pair says to it, decoded greedily."""


@pytest.fixture(autouse=True)
def serves(drafting: Server) -> None:
    """All of these need the engine."""


def configured(server: Server, name: str) -> str:
    """What a person pastes."""
    return dflash("connect", name, at=server.directory).succeeded().out


def ran(
    server: Server, *command: str, packages: Path | None = None, hub: str = "", home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A program with the key in its environment and this Python's commands on its path; `hub` for what it fetches."""
    found = [str(packages)] if packages else []
    environment = os.environ | {
        KEY_VARIABLE: server.key,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([*found, *filter(None, [os.environ.get("PYTHONPATH")])]),
        # LiteLLM asks GitHub for prices otherwise
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **({"HF_ENDPOINT": hub, "HF_HOME": str(home)} if hub else {}),
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def greedily(program: str) -> str:
    """The same program, decoding so that the answer is one that is known."""
    limit = "    max_tokens=100,\n"
    assert limit in program
    options = 'temperature=0, extra_body={"chat_template_kwargs": {"enable_thinking": False}}'
    return program.replace(limit, f"{limit}    {options},\n")


def test_the_openai_sdk_for_python_streams_an_answer(drafting: Server) -> None:
    done = ran(drafting, sys.executable, "-c", greedily(configured(drafting, "openai-python")))
    assert (done.returncode, done.stdout.strip()) == (0, ANSWER), done.stderr


def test_the_openai_sdk_with_another_key_is_told_so(drafting: Server) -> None:
    program = configured(drafting, "openai-python").replace(f'os.environ["{KEY_VARIABLE}"]', 'os.environ["HOME"]')
    done = ran(drafting, sys.executable, "-c", program)
    assert done.returncode != 0
    assert "AuthenticationError" in done.stderr


def test_curl_gets_an_answer_and_its_key_from_the_deployment(drafting: Server) -> None:
    done = ran(drafting, "bash", "-euc", configured(drafting, "curl"))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] > 0


def test_the_anthropic_sdk_gets_an_answer_with_what_claude_code_is_told(drafting: Server) -> None:
    settings = configured(drafting, "claude-code").replace("\nclaude\n", f"\nexec {sys.executable} - \n")
    program = f"""
import os, anthropic
client = anthropic.Anthropic()
said = client.messages.create(
    model=os.environ["ANTHROPIC_MODEL"],
    max_tokens=200,
    extra_body={{"temperature": 0}},
    messages=[{{"role": "user", "content": "{ASKED}"}}],
)
print("".join(block.text for block in said.content))
"""
    done = ran(drafting, "bash", "-euc", f"{settings.rstrip()} <<'PROGRAM'\n{program}\nPROGRAM\n")
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout


def test_litellm_gets_an_answer_with_the_parameters_of_its_configuration(drafting: Server) -> None:
    (model,) = yaml.safe_load(configured(drafting, "litellm"))["model_list"]
    parameters = model["litellm_params"]
    assert parameters.pop("api_key") == f"os.environ/{KEY_VARIABLE}"
    program = f"""
import os, litellm
said = litellm.completion(
    **{parameters!r}, api_key=os.environ["{KEY_VARIABLE}"], temperature=0, max_tokens=100,
    messages=[{{"role": "user", "content": "{ASKED}"}}],
    extra_body={{"chat_template_kwargs": {{"enable_thinking": False}}}},
)
print(said.choices[0].message.content, said.usage.completion_tokens > 0)
"""
    done = ran(drafting, sys.executable, "-c", program, packages=client("litellm-1.109.1"))
    assert (done.returncode, done.stdout.strip()) == (0, f"{ANSWER} True"), done.stderr


def test_z_labs_benchmark_runs_over_something_that_adds_the_key(drafting: Server, tmp_path: Path) -> None:
    """`dflash` 0.1.0 sends no key (dflash/benchmark.py, send_openai); its data set comes from a local hub."""
    with drafting.connect() as endpoint:
        url, before_it = endpoint.url, endpoint.counters()
    problems = [prompt.messages[-1].content for prompt in load_prompts(asset("models/tiny/prompts.jsonl"))[:6]]
    told = ("benchmark", "openai", "--model", "tiny", "--dataset", "math500", "--reasoning", "off")
    asks = (sys.executable, "-c", "from dflash.cli import main; main()", *told)
    size = ("--num-prompts", "6", "--concurrency", "2", "--max-new-tokens", "40")
    with Hub() as hub:
        hub.add(
            "HuggingFaceH4/MATH-500", {"test.jsonl": "".join(f"{json.dumps({'problem': one})}\n" for one in problems)}
        )
        run = partial(
            ran,
            drafting,
            *asks,
            *size,
            packages=client("dflash-0.1.0-with-datasets-5.0.1"),
            hub=hub.endpoint,
            home=tmp_path,
        )
        assert "401" in run("--base-url", url).stderr
        with before(url, AddsTheKey, drafting.key) as opened:
            done = run("--base-url", opened)
    assert done.returncode == 0, done.stderr
    figures = dict(re.findall(r"^(Num prompts|Concurrency|Output tokens): +(\d+)$", done.stdout, re.MULTILINE))
    assert (figures["Num prompts"], figures["Concurrency"]) == ("6", "2")
    assert 6 < int(figures["Output tokens"]) <= 240
    with drafting.connect() as endpoint:
        assert (endpoint.counters() - before_it).drafts > 0
