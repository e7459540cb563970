"""Real clients against the real engine, set up as `dflash-deploy connect` says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dflash_deploy.client.connect import KEY_VARIABLE
from tests.support.cli import dflash
from tests.support.clients import client
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


def ran(server: Server, *command: str, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program with the key in its environment and this Python's commands on its path."""
    found = [str(packages)] if packages else []
    environment = os.environ | {
        KEY_VARIABLE: server.key,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([*found, *filter(None, [os.environ.get("PYTHONPATH")])]),
        # LiteLLM asks GitHub for prices otherwise
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
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


def test_z_labs_own_client_needs_something_that_adds_the_key(drafting: Server) -> None:
    """`dflash` 0.1.0 sends no key (dflash/benchmark.py, send_openai); its data sets come from the hub."""
    with drafting.connect() as endpoint:
        url = endpoint.url
    asks = "from dflash.cli import main; main()"
    told = ("generate", "openai", "--model", "tiny", "--reasoning", "off", "--max-new-tokens", "50", ASKED)
    packages = client("dflash-0.1.0")
    refused = ran(drafting, sys.executable, "-c", asks, *told, "--base-url", url, packages=packages)
    assert "401" in refused.stderr
    with before(url, AddsTheKey, drafting.key) as opened:
        done = ran(drafting, sys.executable, "-c", asks, *told, "--base-url", opened, packages=packages)
    assert (done.returncode, done.stdout.strip()) == (0, ANSWER), done.stderr
