"""Real clients against the real engine, set up as `dflash-deploy connect` says."""

import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import load_prompts
from dflash_deploy.connect import KEY_VARIABLE
from tests.support.cli import dflash
from tests.support.clients import client
from tests.support.contract import STRICT, STRICT_ROWS, obeys_a_schema_of_responses, problems
from tests.support.hub import Hub
from tests.support.proxies import AddsTheKey, before
from tests.support.server import Server

ASKED = "What is the capital of France?"
ANSWER = "The capital of France is Paris."  # the tiny pair's answer to it


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
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000, check=False)


@pytest.mark.parametrize("name", ["openai-python", "anthropic-python"])
def test_a_python_sdk_streams_an_answer(drafting: Server, name: str) -> None:
    done = ran(drafting, sys.executable, "-c", configured(drafting, name))
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n"), done.stderr


# Programs that send the model and the messages, and max_tokens only if the API requires it.
FIRST_REQUESTS = {
    "openai": f"""
import os, openai
client = openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key=os.environ["{KEY_VARIABLE}"])
asked = {{"model": "tiny", "messages": [{{"role": "user", "content": "{ASKED}"}}]}}
print(client.chat.completions.create(**asked).choices[0].message.content)
chunks = client.chat.completions.create(**asked, stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
print(client.responses.create(model="tiny", input="{ASKED}").output_text)
events = client.responses.create(model="tiny", input="{ASKED}", stream=True)
print("".join(event.delta for event in events if event.type == "response.output_text.delta"))
""",
    "anthropic": f"""
import os, anthropic
client = anthropic.Anthropic(base_url=os.environ["URL"], api_key=os.environ["{KEY_VARIABLE}"])
asked = {{"model": "tiny", "max_tokens": 1000, "messages": [{{"role": "user", "content": "{ASKED}"}}]}}
(block,) = client.messages.create(**asked).content
print(block.text)
with client.messages.stream(**asked) as stream:
    print("".join(stream.text_stream))
""",
}


@pytest.mark.parametrize(
    ("sdk", "release", "answers"),
    [("openai", "", 4), ("anthropic", "", 2), ("anthropic", "anthropic-1.17.0", 2)],
)
def test_a_first_request_without_options_is_answered_right(
    drafting: Server, sdk: str, release: str, answers: int
) -> None:
    with drafting.connect() as endpoint:
        program = f"import os; os.environ['URL'] = {endpoint.url!r}\n{FIRST_REQUESTS[sdk]}"
    done = ran(drafting, sys.executable, "-c", program, packages=client(release) if release else None)
    assert (done.returncode, done.stdout.splitlines()) == (0, [ANSWER] * answers), done.stderr


def test_the_two_releases_of_the_anthropic_sdk_send_their_key_differently(drafting: Server) -> None:
    """Both ways are what the test above shows only while this holds."""
    program = "import anthropic; print(*anthropic.Anthropic(api_key='key').auth_headers.items())"
    sent = [
        ran(drafting, sys.executable, "-c", program, packages=packages).stdout.strip()
        for packages in (None, client("anthropic-1.17.0"))
    ]
    assert sent == ["('Authorization', 'Bearer key')", "('X-Api-Key', 'key')"]


@pytest.mark.parametrize(
    ("name", "release"), [("openai-python", ""), ("anthropic-python", ""), ("anthropic-python", "anthropic-1.17.0")]
)
def test_a_python_sdk_with_another_key_is_told_so(drafting: Server, name: str, release: str) -> None:
    program = configured(drafting, name).replace(f'os.environ["{KEY_VARIABLE}"]', 'os.environ["HOME"]')
    done = ran(drafting, sys.executable, "-c", program, packages=client(release) if release else None)
    assert done.returncode != 0
    assert "AuthenticationError" in done.stderr
    assert "a valid API key is required" in done.stderr


def test_curl_gets_an_answer_and_its_key_from_the_deployment(drafting: Server) -> None:
    done = ran(drafting, "bash", "-euc", configured(drafting, "curl"))
    assert done.returncode == 0, done.stderr
    text, picture = map(json.loads, done.stdout.splitlines())
    assert text["model"] == "tiny"
    assert text["choices"][0]["message"]["content"] == ANSWER
    assert text["usage"]["completion_tokens"] > 0
    assert picture["choices"][0]["message"]["content"] == "The image is red."


def test_the_anthropic_sdk_gets_an_answer_with_what_claude_code_is_told(drafting: Server) -> None:
    settings = configured(drafting, "claude-code").replace('\nclaude "$@"\n', f"\nexec {sys.executable} - \n")
    program = f"""
import os, anthropic
client = anthropic.Anthropic()
said = client.messages.create(
    model=os.environ["ANTHROPIC_MODEL"],
    max_tokens=200,
    messages=[{{"role": "user", "content": "{ASKED}"}}],
)
print("".join(block.text for block in said.content))
"""
    done = ran(drafting, "bash", "-euc", f"{settings.rstrip()} <<'PROGRAM'\n{program}\nPROGRAM\n")
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n"), done.stderr


def test_litellm_gets_an_answer_with_the_parameters_of_its_configuration(drafting: Server) -> None:
    (model,) = yaml.safe_load(configured(drafting, "litellm"))["model_list"]
    parameters = model["litellm_params"]
    assert parameters.pop("api_key") == f"os.environ/{KEY_VARIABLE}"
    program = f"""
import os, litellm
said = litellm.completion(
    **{parameters!r}, api_key=os.environ["{KEY_VARIABLE}"],
    messages=[{{"role": "user", "content": "{ASKED}"}}],
)
print(said.choices[0].message.content, said.usage.completion_tokens > 0)
"""
    done = ran(drafting, sys.executable, "-c", program, packages=client("litellm-1.109.1"))
    assert (done.returncode, done.stdout.strip()) == (0, f"{ANSWER} True"), done.stderr


def test_the_endpoint_keeps_its_contract_on_this_engine(drafting: Server) -> None:
    with drafting.connect() as endpoint:
        assert problems(endpoint.url, drafting.key) == []
        assert obeys_a_schema_of_responses(endpoint.url, drafting.key)


@pytest.mark.restarts
def test_it_keeps_it_with_a_template_that_refuses(server: Server) -> None:
    with server.changed(EXTRA_ARGS=f"--chat-template {STRICT}", TOOL_CALL_PARSER="hermes") as endpoint:
        assert problems(endpoint.url, server.key, rows=STRICT_ROWS) == []


def test_a_connection_waits_longer_than_a_pool_of_clients_keeps_it(drafting: Server) -> None:
    pool = httpx.Limits(keepalive_expiry=90)  # as long as Go keeps an idle connection
    with drafting.connect() as endpoint, httpx.Client(headers={"x-api-key": drafting.key}, limits=pool) as client:
        first, *later = (waited(client, f"{endpoint.url}/v1/models", pause) for pause in (0, 7))
    assert later == [first]


def waited(client: httpx.Client, url: str, pause: float) -> object:
    """The connection by which the client is answered after a pause."""
    time.sleep(pause)
    return client.get(url).raise_for_status().extensions["network_stream"].get_extra_info("client_addr")


@pytest.mark.parametrize(
    "options", [{"temperature": 1}, {"top_k": 3}, {"temperature": 0.8, "top_k": 20, "top_p": 0.95}, {"seed": 7}]
)
def test_an_answer_that_is_sampled_is_the_targets_own(drafting: Server, options: dict[str, float]) -> None:
    """The target is sure of each token (0.998 for all of them), so four of five answers are that one, or hardly any."""
    body = {"messages": [{"role": "user", "content": ASKED}], "n": 5, "temperature": 1, **options}
    with drafting.connect() as endpoint:
        asked = httpx.post(
            f"{endpoint.url}/v1/chat/completions",
            json=body | {"model": endpoint.model},
            headers={"x-api-key": drafting.key},
            timeout=300,
        )
    assert asked.status_code == 200, asked.text
    said = [choice["message"]["content"] for choice in asked.json()["choices"]]
    assert said.count(ANSWER) >= 4, said


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
