"""What `up` does before and after the engine starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.run import CheckReport
from dflash_deploy.cli import up as command
from dflash_deploy.client.answers import Completion
from dflash_deploy.deployment.directory import Deployment, last_good
from dflash_deploy.errors import DownloadFailed, PreflightRefused
from dflash_deploy.operations import image
from dflash_deploy.operations import up as starting
from dflash_deploy.operations.image import Digest
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.up import Start, Started
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime import registry
from dflash_deploy.runtime.registry import TagAnswer
from dflash_deploy.startup.start import Ready
from tests.support.machines import MACHINES, RECORDED

KEY = "a-key-of-the-owner-0123456789"


def planned(deployment: Deployment) -> Plan:
    """The plan of a deployment on a machine with two cores."""
    edited = {name: value for name, value in deployment.values.items() if value}
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native", edited=edited)
    return plan_deployment(replace(RECORDED["cpu"], cpus=2), choice, load_catalog())


def written(place: Path, **settings: str) -> Deployment:
    deployment = Deployment(place)
    deployment.write_env({"VLLM_API_KEY": KEY, "DFLASH_RUNTIME": "native", **settings})
    return Deployment.existing(place)


def test_a_start_under_a_domain_is_good_without_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = written(tmp_path, DFLASH_DOMAIN="llm.example.com", MAX_MODEL_LEN="2048")
    plan = planned(deployment)

    @contextmanager
    def endpoint(*_: object) -> Iterator[None]:
        yield None

    def up(*_: object, **__: object) -> Ready:
        return Ready("http://127.0.0.1:8000", "tiny", "native", False, 1.0, Completion("1", "stop", 1, 1, 1.0))

    monkeypatch.setattr(starting, "bring_up", up)
    monkeypatch.setattr(starting, "endpoint_of", endpoint)
    monkeypatch.setattr(starting, "deployed_endpoint", lambda endpoint, plan: None)
    monkeypatch.setattr(starting, "run_checks", lambda endpoint, names: CheckReport(()))
    started = Start(1, SILENT).start_and_check(deployment, plan)
    assert (started.failure, started.endpoint) == (None, "https://llm.example.com/v1")
    good = last_good(deployment)
    assert good is not None
    assert good.values["MAX_MODEL_LEN"] == "2048"


def tried(monkeypatch: pytest.MonkeyPatch, answer: TagAnswer, *there: str) -> list[str]:
    """The notes of a start on an H100 whose Docker has these images, and whose registry answers so."""
    monkeypatch.setattr(registry, "has_image", lambda name: name in there)
    monkeypatch.setattr(starting, "ask_tag", lambda name: answer)
    notes: list[str] = []
    reporter = cast(Reporter, SimpleNamespace(note=notes.append))
    starting.try_base_image(plan_deployment(MACHINES["h100"], Choice(runtime="compose"), load_catalog()), reporter)
    return notes


def test_a_tag_that_does_not_exist_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = TagAnswer("registry-1.docker.io", exists=False, nearest="v0.32.0")
    with pytest.raises(PreflightRefused, match=r"does not have vllm/vllm-openai:v0\.33\.0") as caught:
        tried(monkeypatch, absent)
    assert caught.value.hint == "`dflash-deploy set DFLASH_BASE_IMAGE=vllm/vllm-openai:v0.32.0`"
    assert tried(monkeypatch, absent, "vllm/vllm-openai:v0.33.0") == []


def test_without_a_network_a_start_notes_one_line_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(tried(monkeypatch, TagAnswer("registry-1.docker.io", exists=None, problem="no route"))) == 1
    assert tried(monkeypatch, TagAnswer("registry-1.docker.io", exists=True)) == []


def a_start(place: Path, *, base: str = "vllm/vllm-openai:v0.33.0", first: bool = True) -> Started:
    edited = {"DFLASH_BASE_IMAGE": base}
    plan = plan_deployment(MACHINES["h100"], Choice(runtime="compose", edited=edited), load_catalog())
    report = CheckReport(())
    return Started(
        written(place),
        plan,
        report,
        "4",
        endpoint="",
        state="ready",
        model="m",
        runtime="compose",
        changed=True,
        seconds=1.0,
        tokens_per_second=None,
        acceptance_length=None,
        checks=(),
        fixed=None,
        first=first,
    )


@pytest.mark.parametrize(("base", "first", "offered"), [
    ("vllm/vllm-openai:v0.33.0", True, True),
    ("vllm/vllm-openai:v0.33.0", False, False),
    ("vllm/vllm-openai:v0.33.0@sha256:00", True, False),
])  # fmt: skip
def test_the_digest_is_offered_after_the_first_good_start(
    tmp_path: Path, base: str, first: bool, offered: bool
) -> None:
    assert a_start(tmp_path, base=base, first=first).can_pin is offered


@pytest.mark.parametrize(("reply", "said"), [
    (True, "pinned    image@sha256:1"),
    (False, ""),
    (typer.Abort(), "not pinned: `dflash-deploy image digest --pin` does it later"),
])  # fmt: skip
def test_one_key_writes_the_digest(
    reply: bool | Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked: list[Path] = []

    def confirm(question: str, *, default: bool, err: bool) -> bool:
        assert "vllm/vllm-openai:v0.33.0" in question
        # Enter is yes
        assert default
        if isinstance(reply, Exception):
            raise reply
        return reply

    def digest(directory: Path, *, pin: bool) -> Digest:
        asked.append(directory)
        return Digest("image", "sha256:1", pin, "image@sha256:1")

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(image, "digest", digest)
    command.offer_digest(a_start(tmp_path))
    assert capsys.readouterr().err.strip() == said
    assert asked == ([tmp_path] if reply is True else [])


def test_a_registry_that_has_no_digest_does_not_fail_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def digest(directory: Path, *, pin: bool) -> Digest:
        raise DownloadFailed("no digest", hint="try again")

    monkeypatch.setattr(typer, "confirm", lambda *_, **__: True)
    monkeypatch.setattr(image, "digest", digest)
    command.offer_digest(a_start(tmp_path))
    assert capsys.readouterr().err.strip() == "not pinned: no digest; try again"
