"""`connect`, and the configurations in the programs that read them."""

import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.connect import ClientTemplate, EndpointFacts, clients, configuration
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env, initialise

NASTY = EndpointFacts("http://127.0.0.1:8000", 'it\'s "a" $model\\', 4096, "/home/you/my box's $dir")


def text_of(name: str, place: EndpointFacts) -> str:
    return configuration(clients()[name], place)


def named(suffix: str) -> list[str]:
    return [name for name, client in clients().items() if client.file.endswith(suffix)]


@pytest.mark.parametrize("name", named(".sh"))
def test_the_shell_reads_it(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text_of(name, NASTY), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", named(".mjs"))
def test_node_reads_it(name: str, tmp_path: Path) -> None:
    written = tmp_path / "it.mjs"
    written.write_text(text_of(name, NASTY))
    done = subprocess.run(["node", "--check", str(written)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_hands_over_the_words_that_were_meant() -> None:
    """The program behind the variables is one that prints them."""
    text = text_of("claude-code", NASTY).replace("\nclaude\n", "\nenv\n")
    # no deployment is there to ask
    asks = shlex.quote(f'dflash-deploy() {{ test "$5" = {shlex.quote(NASTY.directory)} && echo the-key; }}')
    done = subprocess.run(
        ["bash", "-euc", f"eval {asks}\n{text}"], text=True, capture_output=True, env=dict(os.environ), check=True
    )
    said = dict(line.partition("=")[::2] for line in done.stdout.splitlines() if line.startswith("ANTHROPIC_"))
    assert said["ANTHROPIC_MODEL"] == said["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == NASTY.model
    assert said["ANTHROPIC_AUTH_TOKEN"] == "the-key"
    assert "ANTHROPIC_API_KEY" not in said


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deployment")
    initialise("--profile", "cpu", "--runtime", "native", "--port", "8123", at=directory)
    return directory


def test_the_key_is_never_printed(deployment: Path) -> None:
    key = Deployment(deployment).key.reveal()
    for options in ([], ["curl"], ["litellm", "--json"]):
        ran = dflash("connect", *options, at=deployment).succeeded()
        assert key not in ran.out + ran.err
        assert "127.0.0.1:8123" in ran.out


def test_standard_output_is_the_configuration_alone(deployment: Path) -> None:
    ran = dflash("connect", "codex", at=deployment).succeeded()
    assert tomllib.loads(ran.out)["model"] == "tiny"
    assert "~/.codex/config.toml" in ran.err
    assert "TOOL_CALL_PARSER is empty" in ran.err


def test_another_address_than_where_it_listens(deployment: Path) -> None:
    data = dflash("connect", "curl", "--url", "https://models.example.com/v1", "--json", at=deployment).document["data"]
    assert data["endpoint"] == "https://models.example.com/v1"
    assert "https://models.example.com/v1/chat/completions" in data["configuration"]


def test_a_client_that_is_not_known_is_refused_with_those_that_are(deployment: Path) -> None:
    ran = dflash("connect", "emacs", at=deployment)
    assert ran.code is ExitCode.USAGE
    assert "curl" in ran.err
    assert dflash("connect", "curl", "--url", "models", at=deployment).code is ExitCode.USAGE


def test_a_shell_template_without_quotes_would_be_noticed() -> None:
    """The check above can fail: the same name put in bare is a syntax error."""
    client = ClientTemplate(title="", file="curl.sh", where="")
    bare = asset("connect", client.file).read_text().replace("__CURL_BODY__", "it's")
    assert subprocess.run(["bash", "-n"], input=bare, text=True, capture_output=True, check=False).returncode != 0


def test_the_served_name_of_the_settings_is_the_one_to_ask_for(deployment: Path) -> None:
    edit_env(deployment, SERVED_MODEL_NAME="another")
    assert 'model="another"' in dflash("connect", "openai-python", at=deployment).succeeded().out
    edit_env(deployment, SERVED_MODEL_NAME="tiny")
