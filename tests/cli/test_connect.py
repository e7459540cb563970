"""`connect`, and the configurations in the programs that read them."""

import json
import os
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from itertools import product
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


@pytest.mark.parametrize(("shell", "name"), [*product(["bash"], named(".sh")), ("sh", "curl"), ("dash", "curl")])
def test_the_shell_reads_it(shell: str, name: str) -> None:
    done = subprocess.run([shell, "-n"], input=text_of(name, NASTY), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", named(".mjs"))
def test_node_reads_it(name: str, tmp_path: Path) -> None:
    written = tmp_path / "it.mjs"
    written.write_text(text_of(name, NASTY))
    done = subprocess.run(["node", "--check", str(written)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_hands_over_the_words_that_were_meant() -> None:
    """The program behind the variables is one that prints them."""
    text = text_of("claude-code", NASTY).replace('\nclaude "$@"\n', "\nenv\n")
    # no deployment is there to ask
    asks = shlex.quote(f'dflash-deploy() {{ test "$5" = {shlex.quote(NASTY.directory)} && echo the-key; }}')
    done = subprocess.run(
        ["bash", "-euc", f"eval {asks}\n{text}"], text=True, capture_output=True, env=dict(os.environ), check=True
    )
    said = dict(line.partition("=")[::2] for line in done.stdout.splitlines() if line.startswith("ANTHROPIC_"))
    assert said["ANTHROPIC_MODEL"] == said["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == NASTY.model
    assert said["ANTHROPIC_AUTH_TOKEN"] == "the-key"
    assert "ANTHROPIC_API_KEY" not in said


def test_claude_code_gets_the_limits_and_a_prompt_that_stays_the_same() -> None:
    lines = text_of("claude-code", NASTY).splitlines()
    assert "export CLAUDE_CODE_MAX_OUTPUT_TOKENS=1024" in lines
    assert "export CLAUDE_CODE_MAX_CONTEXT_TOKENS=4096" in lines
    assert "export CLAUDE_CODE_ATTRIBUTION_HEADER=0" in lines


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


def of_home(home: Path) -> Mapping[str, str]:
    """An environment with this home directory."""
    return {"HOME": str(home), "XDG_CONFIG_HOME": ""}


OPENCODE = Path(".config/opencode/opencode.json")
OWN = {"theme": "dark", "provider": {"mine": {"npm": "x"}}}


def test_write_shows_a_diff_keeps_a_backup_and_asks(deployment: Path, tmp_path: Path) -> None:
    home = of_home(tmp_path)
    file = tmp_path / OPENCODE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(OWN))
    refused = dflash("connect", "opencode", "--write", at=deployment, environment=home)
    assert (refused.code, json.loads(file.read_text())) == (ExitCode.USAGE, OWN)
    assert "--yes" in refused.err
    ran = dflash("connect", "opencode", "--write", "--yes", at=deployment, environment=home).succeeded()
    assert '+  "model": "dflash/tiny"' in ran.err
    text = file.read_text()
    assert json.loads(text)["theme"] == "dark"
    assert list(json.loads(text)["provider"]) == ["mine", "dflash"]
    assert Deployment(deployment).key.reveal() not in text
    (backup,) = file.parent.glob("*.bak")
    assert (json.loads(backup.read_text()), file.stat().st_mode & 0o777, backup.stat().st_mode & 0o777) == (
        OWN,
        0o600,
        0o600,
    )
    data = dflash("connect", "opencode", "--write", "--yes", "--json", at=deployment, environment=home).document["data"]
    assert "written" not in data or data["written"] is None
    assert (file.read_text(), list(file.parent.glob("*.bak"))) == (text, [backup])


def test_write_follows_the_variable_of_the_folder_of_configurations(deployment: Path, tmp_path: Path) -> None:
    place = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "own")}
    dflash("connect", "opencode", "--write", "--yes", at=deployment, environment=place).succeeded()
    assert [one.relative_to(tmp_path) for one in tmp_path.rglob("*.json")] == [Path("own/opencode/opencode.json")]


@pytest.mark.parametrize(
    ("client", "old", "said"), [("opencode", "// mine\n{}", "not valid JSON"), ("curl", "", "does not read")]
)
def test_write_refuses_what_it_cannot_merge(deployment: Path, tmp_path: Path, client: str, old: str, said: str) -> None:
    file = tmp_path / OPENCODE
    file.parent.mkdir(parents=True)
    file.write_text(old)
    ran = dflash("connect", client, "--write", "--yes", at=deployment, environment=of_home(tmp_path))
    assert ran.code is ExitCode.USAGE
    assert said in ran.err
    assert (file.read_text(), len(list(tmp_path.rglob("*.*")))) == (old, 2)


def with_a(client: str, home: Path) -> Mapping[str, str]:
    """An environment whose PATH has a client that prints its arguments and variables."""
    program = home / "bin" / client
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "arguments $*"\nenv\n')
    program.chmod(0o755)
    return {**of_home(home), "PATH": f"{program.parent}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("client", "arguments"), [("aider", "--model openai/tiny --model-metadata-file /tmp/"), ("llm", "-m dflash hi")]
)
def test_launch_starts_a_client_with_the_key(deployment: Path, tmp_path: Path, client: str, arguments: str) -> None:
    environment = with_a(client, tmp_path)
    options = ("--launch", "--yes", "--", "-m", "dflash", "hi")
    ran = dflash("connect", client, *options, at=deployment, environment=environment, prefix=("env",)).succeeded()
    assert f"arguments {arguments}" in ran.out
    assert "-m dflash hi" in ran.out
    key = Deployment(deployment).key.reveal()
    assert {f"DFLASH_API_KEY={key}", f"OPENAI_API_KEY={key}"} <= set(ran.out.splitlines())


def test_launch_says_how_to_install_a_client_and_that_the_context_is_too_small(
    deployment: Path, tmp_path: Path
) -> None:
    missing = dflash("connect", "claude-code", "--launch", at=deployment, environment={"PATH": "/nonexistent"})
    assert missing.code is ExitCode.PREFLIGHT
    assert "npm install -g @anthropic-ai/claude-code" in missing.err
    small = dflash("connect", "claude-code", "--launch", at=deployment, environment=with_a("claude", tmp_path))
    assert small.code is ExitCode.PREFLIGHT
    assert "2048 tokens is too small" in small.err
    assert "MAX_MODEL_LEN" in small.err


def test_a_named_key_comes_with_a_note_to_hand_over(deployment: Path) -> None:
    dflash("keys", "add", "alice", at=deployment).succeeded()
    key = dflash("keys", "show", "alice", "--reveal", at=deployment).succeeded().out.strip()
    for client in ("any", "codex", "claude-code"):
        out = dflash("connect", client, "--key", "alice", at=deployment).succeeded().out
        assert key in out
        assert "http://127.0.0.1:8123" in out
        assert Deployment(deployment).key.reveal() not in out
        said = dflash("connect", client, "--key", "alice", at=deployment).succeeded().err
        assert "only this machine reaches this address" in said
        assert "dflash-deploy set DFLASH_DOMAIN=$(hostname -f)" in said
        assert "dflash-deploy set DFLASH_BIND=0.0.0.0" in said
    elsewhere = dflash("connect", "any", "--key", "alice", "--url", "http://box:8000", at=deployment).succeeded().err
    assert "only this machine" not in elsewhere
    document = dflash("connect", "any", "--key", "alice", "--json", at=deployment).succeeded().out
    assert key not in document
    assert dflash("connect", "any", "--key", "bob", at=deployment).code is ExitCode.USAGE
