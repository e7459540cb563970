"""The key is searched in all that any verb shows: text, documents, errors, and tracebacks that are asked for."""

import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer

from dflash_deploy.cli.app import COMMANDS
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.redact import REDACTED, generate_key
from tests.support.cli import dflash, edit_env, initialise, invoke
from tests.support.ports import free_port

# Every verb, with what it needs to do something where no engine runs.
VERBS: dict[str, tuple[str, ...]] = {
    "init": ("--force",),
    "plan": (),
    "doctor": (),
    "pull": ("--offline",),
    "render": (),
    "up": (),
    "restart": (),
    "upgrade": ("--check",),
    "rollback": (),
    "run": (),
    "test": (),
    "bench": (),
    "tune": (),
    "ask": ("Why?",),
    "chat": (),
    "connect": ("curl",),
    "open": (),
    "status": (),
    "list": (),
    "logs": (),
    "down": (),
    "set": ("--list",),
    "profiles list": (),
    "profiles show": ("cpu",),
    "models list": ("--profile", "cpu"),
    "models show": ("tiny",),
    "models use": ("tiny",),
    "models add": (".",),
    "models rm": ("tiny",),
    "models prune": (),
    "export ray": ("cluster",),
    "models convert gguf": (".", "--target", "."),
    "fleet init": (),
    "fleet up": (),
    "fleet status": (),
    "fleet test": (),
    "fleet logs": (),
    "fleet down": (),
    "image build": (),
    "image verify": (),
    "image digest": (),
    "keys show": (),
    "keys rotate": (),
    "schema": ("keys", "rotate"),
    "explain": (".dflash/engine.log",),
    "keys add": ("alice",),
    "keys revoke": ("alice",),
    "keys list": (),
    "keys usage": (),
    "monitor up": (),
    "monitor down": (),
}

# Verbs that read no deployment, or none without a document on standard input.
WITHOUT_DIRECTORY = (
    # it refuses to start without a terminal
    "chat",
    "profiles",
    "models",
    "schema",
    "explain",
    "fleet",
)

# Parts of the command fail for a reason nobody foresaw, whose words hold the key.
BROKEN = """
import sys
import dflash_deploy.catalog.load, dflash_deploy.rules.table, dflash_deploy.runtime.select
import dflash_deploy.deployment.dotenv, dflash_deploy.features.monitoring.operations
import dflash_deploy.deployment.directory, dflash_deploy.operations.keys

def fall(*_, **__):
    raise RuntimeError(f"it fell, holding {KEY}") from ValueError(KEY)

def falls_everywhere(part):
    for module in [one for name, one in sys.modules.items() if name.startswith("dflash_deploy")]:
        for name in [name for name, value in vars(module).items() if value is part]:
            setattr(module, name, fall)

falls_everywhere(dflash_deploy.deployment.directory.last_good)
falls_everywhere(dflash_deploy.deployment.dotenv.check_keys)
falls_everywhere(dflash_deploy.runtime.select.runtime_for)
falls_everywhere(dflash_deploy.catalog.load.load_catalog)
falls_everywhere(dflash_deploy.rules.table.plan_deployment)
dflash_deploy.deployment.directory.Deployment.is_private = fall
dflash_deploy.operations.keys.locked = fall
dflash_deploy.operations.keys.Keys = fall
falls_everywhere(dflash_deploy.features.monitoring.operations.monitoring_folder)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment as `init` makes it."""
    place = tmp_path_factory.mktemp("template")
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=place)
    return place


@pytest.fixture
def deployment(template: Path, tmp_path: Path) -> Path:
    """One whose key got into other settings and into the files beside `.env`, as keys do."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    key = generate_key().reveal()
    edit_env(
        tmp_path,
        VLLM_API_KEY=key,
        SERVED_MODEL_NAME=key,
        EXTRA_ARGS=f"'--lora-modules {key}'",
        DFLASH_DRAFTER=f"/models/{key}",
    )
    (tmp_path / ".dflash" / "engine.log").write_text(f"api_key: {key}\n")
    return tmp_path


def key_of(directory: Path) -> str:
    return Deployment(directory).key.reveal()


def names_of(group: typer.Typer, prefix: str = "") -> set[str]:
    own = {
        prefix + (command.name or str(command.callback and command.callback.__name__))
        for command in group.registered_commands
    }
    below = (
        names_of(each.typer_instance, f"{prefix}{each.name} ")
        for each in group.registered_groups
        if each.typer_instance
    )
    return own.union(*below)


def every_name() -> Iterator[str]:
    for name, (module, _) in COMMANDS.items():
        loaded = getattr(import_module(module), name)
        yield from names_of(loaded, f"{name} ") if isinstance(loaded, typer.Typer) else (name,)


def test_no_verb_is_left_out() -> None:
    assert set(every_name()) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_key_is_in_nothing_that_is_shown(
    deployment: Path, verb: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(deployment)
    # narrow enough to break lines where they may break
    monkeypatch.setenv("COLUMNS", "40")
    for options in ((), ("--json",)) if not verb.endswith("logs") else ((),):
        key = key_of(deployment)
        at = ("--dir", ".") if verb == "init" else ()
        ran = invoke(*verb.split(), *VERBS[verb], *at, *options)
        # also what programs that it started have written
        shown = whole(ran.out + ran.err + "".join(capfd.readouterr()))
        for secret in (key, key_of(deployment)):
            assert secret not in shown


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not verb.startswith(WITHOUT_DIRECTORY)])
def test_the_key_is_in_no_traceback(deployment: Path, verb: str) -> None:
    key = key_of(deployment)
    for debug in ({}, {"DFLASH_DEBUG": "1"}):
        ran = dflash(*verb.split(), *VERBS[verb], at=deployment, environment=debug, first=f"KEY = {key!r}\n{BROKEN}")
        assert key not in whole(ran.out + ran.err)
        assert f"it fell, holding {REDACTED}" in ran.err
        assert ("Traceback" in ran.err) == bool(debug)


def whole(text: str) -> str:
    """What was shown as one line, so that a key is found that was broken over several."""
    return "".join(text.split())
