"""The Python API: its names, what they document, and the program that the manual shows."""

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dflash_deploy.operations
from dflash_deploy import operations
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import ExitCode, NoDeployment
from dflash_deploy.runtime import EngineState
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.startup import ShowProgress
from tests.support.api_example import MANUAL, program
from tests.support.ports import free_port
from tests.support.scripted import ScriptedRuntime, listening, play

MODULES = {path.stem for path in Path(dflash_deploy.operations.__file__).parent.glob("*.py")}


@pytest.mark.parametrize("name", operations.__all__)
def test_a_name_of_the_api_is_there_and_documented(name: str) -> None:
    found = getattr(operations, name)
    assert inspect.getdoc(found)
    # a module of that name would hide it as soon as it is imported
    assert name not in MODULES


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'launch'"):
        _ = operations.launch  # type: ignore[attr-defined]


def test_an_operation_on_a_deployment_names_the_errors_it_raises() -> None:
    operating = [getattr(operations, name) for name in operations.__all__ if name[0].islower()]
    on_deployments = [one for one in operating if "directory" in inspect.signature(one).parameters]
    silent = {one.__name__ for one in on_deployments if "Raises" not in (inspect.getdoc(one) or "")}
    # doctor turns every refusal into a check
    assert silent == {"doctor"}


def test_the_manual_uses_and_lists_names_of_the_api() -> None:
    tree = ast.parse(program())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "operations"
    }
    assert used <= set(operations.__all__)
    listed = MANUAL.read_text(encoding="utf-8").partition("## Operations")[2]
    named = {name for code in re.findall(r"`([a-z_]+)(?:\(.*?\))?`", listed) for name in [code]}
    missing = {name for name in operations.__all__ if name[0].islower()} - named
    assert missing == set()


class Recorded(operations.Silent):
    """Keeps the lines that it gets."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def starting(self) -> Iterator[ShowProgress]:
        yield lambda progress: self.lines.append(f"{progress.phase}: {progress.last_line}")


def test_a_program_starts_a_deployment_and_gets_its_progress_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    operations.init(tmp_path, operations.Choice(profile="cpu", runtime="native", port=port))
    key = Deployment(tmp_path).key.reveal()

    class Narrating(ScriptedRuntime):
        def start(self, narrate: Narrate) -> bool:
            narrate(f"--api-key {key}")
            return True

    play(monkeypatch, lambda *_: Narrating([EngineState("running", address=f"127.0.0.1:{port}")]))
    recorded = Recorded()
    with listening(200, port=port):
        started = operations.start(tmp_path, reporter=recorded)
    assert isinstance(started, operations.Running)
    assert started.endpoint == f"http://127.0.0.1:{port}/v1"
    # this engine answers without a key
    assert started.failure is not None
    assert started.failure.exit_code is ExitCode.SMOKE_TEST
    assert any(line.endswith("--api-key [redacted]") for line in recorded.lines)
    assert not any(key in line for line in recorded.lines)
    assert capsys.readouterr() == ("", "")


def test_a_program_gets_errors_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(NoDeployment) as raised:
        operations.start(tmp_path)
    assert raised.value.hint
    assert raised.value.exit_code is ExitCode.USAGE
