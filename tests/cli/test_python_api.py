"""The Python API: its names, what they document, and the program that the manual shows."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from dflash_deploy import features, operations
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode, NoDeployment
from dflash_deploy.operations.plan import init
from dflash_deploy.operations.reporter import Silent
from dflash_deploy.operations.up import Started
from dflash_deploy.operations.up import start as run_start
from dflash_deploy.plan.result import Choice
from dflash_deploy.runtime.protocol import EngineState, Narrate
from dflash_deploy.startup.progress import ShowProgress
from tests.support.api_example import MANUAL
from tests.support.ports import free_port
from tests.support.scripted import ScriptedRuntime, listening, play


def modules() -> Iterator[tuple[str, ModuleType]]:
    """The modules of the API by their names in the manual: `up`, and of a feature `fleet.up`."""
    for found in pkgutil.iter_modules(operations.__path__):
        yield found.name, importlib.import_module(f"{operations.__name__}.{found.name}")
    for feature in pkgutil.iter_modules(features.__path__):
        package = importlib.import_module(f"{features.__name__}.{feature.name}")
        for found in pkgutil.iter_modules(package.__path__):
            if found.name not in {"__main__", "commands", "documents"}:
                yield f"{feature.name}.{found.name}", importlib.import_module(f"{package.__name__}.{found.name}")


# Each public function of the modules.
OPERATIONS = {
    f"{place}.{name}": one
    for place, module in modules()
    for name, one in vars(module).items()
    if inspect.isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
}

# What several operations call first; no operations themselves.
SHARED = {
    "plan.chosen",
}


def of_commands() -> dict[str, Callable[..., object]]:
    """The operations on a deployment, by their names in the manual."""
    first = {name: next(iter(inspect.signature(one).parameters.values()), None) for name, one in OPERATIONS.items()}
    on_deployments = {
        name for name, one in first.items() if one and (one.name, one.annotation) == ("directory", "Path")
    }
    return {name: OPERATIONS[name] for name in on_deployments - SHARED}


def test_an_operation_on_a_deployment_names_the_errors_it_raises() -> None:
    silent = {name for name, one in of_commands().items() if "Raises" not in (inspect.getdoc(one) or "")}
    # they turn every refusal into a check, and into a part of the report
    assert silent == {"doctor.doctor", "bundle.issue_report"}


def test_the_manual_lists_every_operation_and_no_other() -> None:
    listed = MANUAL.read_text(encoding="utf-8").partition("## Operations")[2]
    named = set(re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)(?=[(`])", listed))
    assert named <= set(OPERATIONS)
    assert set(of_commands()) - named == set()


class Recorded(Silent):
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
    init(tmp_path, Choice(profile="cpu", runtime="native", port=port))
    key = Deployment(tmp_path).key.reveal()

    class Narrating(ScriptedRuntime):
        def start(self, narrate: Narrate) -> bool:
            narrate(f"--api-key {key}")
            return True

    play(monkeypatch, lambda *_: Narrating([EngineState("running", address=f"127.0.0.1:{port}")]))
    recorded = Recorded()
    with listening(200, port=port):
        started = run_start(tmp_path, reporter=recorded)
    assert isinstance(started, Started)
    assert started.endpoint == f"http://127.0.0.1:{port}/v1"
    # this engine answers without a key
    assert started.failure is not None
    assert started.failure.exit_code is ExitCode.SMOKE_TEST
    assert any(line.endswith("--api-key [redacted]") for line in recorded.lines)
    assert not any(key in line for line in recorded.lines)
    assert capsys.readouterr() == ("", "")


def test_a_program_gets_errors_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(NoDeployment) as raised:
        run_start(tmp_path)
    assert raised.value.hint
    assert raised.value.exit_code is ExitCode.USAGE
