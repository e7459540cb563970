"""What a start remembers and goes back to: of one engine under a domain, and of several engines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import CheckResult
from dflash_deploy.checks.run import CheckReport
from dflash_deploy.client.answers import Completion
from dflash_deploy.deployment.directory import Deployment, last_good, remember_good
from dflash_deploy.deployment.front import write_workers, written_workers
from dflash_deploy.errors import EngineNotReady, RolledBack
from dflash_deploy.operations import replicas
from dflash_deploy.operations import up as starting
from dflash_deploy.operations.replicas import SeveralStart
from dflash_deploy.operations.reporter import SILENT
from dflash_deploy.operations.up import Start
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime.protocol import EngineState
from dflash_deploy.startup import rolling
from dflash_deploy.startup.members import Member, members_of
from dflash_deploy.startup.rolling import Routes, set_apart
from dflash_deploy.startup.start import Ready
from tests.support.machines import RECORDED

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


@dataclass
class Around:
    """The router and the door of several engines. The door fails with these numbers of engines."""

    fails_with: set[int]
    started: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def runtime(self, deployment: Deployment, plan: Plan) -> Any:
        count = plan.settings.replicas

        def start(narrate: Callable[[str], None]) -> bool:
            self.started.append(count)
            if count in self.fails_with:
                raise EngineNotReady("Caddy does not start: no such thing", hint="read its log")
            return True

        return SimpleNamespace(start=start, router=SimpleNamespace(state=lambda: EngineState("running")))


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Around:
    around = Around(set())
    monkeypatch.setattr(replicas, "several_runtime", around.runtime)
    for module in (replicas, starting):
        monkeypatch.setattr(module, "plan_of", planned)
    return around


def test_a_door_of_several_engines_that_fails_gives_way_to_the_last_one(tmp_path: Path, around: Around) -> None:
    remember_good(written(tmp_path, REPLICAS="2"))
    deployment = written(tmp_path, REPLICAS="3")
    around.fails_with = {3}
    with pytest.raises(RolledBack, match="Caddy does not start: no such thing; the engines run with the last working"):
        SeveralStart(deployment, planned(deployment), 1, SILENT).run()
    assert around.started == [3, 2]


def test_several_engines_go_back_to_a_single_one(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_good(written(tmp_path, REPLICAS="1"))
    deployment = written(tmp_path, REPLICAS="2")
    around.fails_with = {2}
    order: list[str] = []

    def restored(of: Deployment, problem: EngineNotReady, *_: object, **__: object) -> EngineNotReady:
        order.append("single")
        return RolledBack(problem.message, hint=problem.hint)

    monkeypatch.setattr(starting, "stop_several", lambda of, plan: order.append(f"stop for {plan.settings.replicas}"))
    monkeypatch.setattr(starting, "restore_last_good", restored)
    with pytest.raises(RolledBack):
        Start(1, SILENT).or_go_back(deployment, planned(deployment))
    # no door of several engines in front of the settings of one
    assert (around.started, order) == ([2], ["stop for 1", "single"])


def test_an_engine_that_has_ended_leaves_the_routers_list_before_it_starts(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = written(tmp_path, REPLICAS="2")
    plan = planned(deployment)
    write_workers(deployment, (member.worker for member in members_of(deployment, plan)))
    seen: list[list[str]] = []

    def prove(start: SeveralStart, member: Member) -> None:
        seen.append([worker.id for worker in written_workers(deployment)])
        raise EngineNotReady("no answer", hint="none")

    monkeypatch.setattr(SeveralStart, "_prove", prove)
    with pytest.raises(EngineNotReady, match="no answer"):
        SeveralStart(deployment, plan, 1, SILENT).run(only=2)
    assert seen == [["1"]]


def test_engines_that_are_too_many_end_their_requests_before_they_stop(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = written(tmp_path, REPLICAS="3")
    write_workers(three, (member.worker for member in members_of(three, planned(three))))
    deployment = written(tmp_path, REPLICAS="2")
    order: list[str] = []

    def ended(member: Member, routes: Routes, **_: object) -> None:
        assert routes.has(member)
        order.append(f"{member.name} has no requests, {len(around.started)} starts")

    monkeypatch.setattr(SeveralStart, "_drop_stopped", lambda start, members: None)
    monkeypatch.setattr(replicas, "_runs", lambda member: True)
    monkeypatch.setattr(replicas, "take_out", ended)
    around.fails_with = {2}
    with pytest.raises(EngineNotReady, match="Caddy does not start"):
        SeveralStart(deployment, planned(deployment), 1, SILENT).run()
    assert order == ["engine 3 has no requests, 0 starts"]
    assert around.started == [2]


def test_a_missing_certificate_leaves_a_good_start_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = written(tmp_path, DFLASH_DOMAIN="llm.example.com", MAX_MODEL_LEN="2048")
    plan, failed = planned(deployment), CheckResult("door: certificate", "failed", 0.1, "a handshake", "NXDOMAIN")

    @contextmanager
    def endpoint(*_: object) -> Iterator[None]:
        yield None

    def up(*_: object, **__: object) -> Ready:
        return Ready("http://127.0.0.1:8000", "tiny", "native", False, 1.0, Completion("1", "stop", 1, 1, 1.0))

    monkeypatch.setattr(starting, "bring_up", up)
    monkeypatch.setattr(starting, "endpoint_of", endpoint)
    monkeypatch.setattr(starting, "deployed_endpoint", lambda endpoint, plan: None)
    monkeypatch.setattr(starting, "run_checks", lambda endpoint, names: CheckReport(()))
    monkeypatch.setattr(starting, "checks_at_door", lambda *_: (failed,))
    started = Start(1, SILENT).and_check(deployment, plan)
    assert started.failure is not None
    assert "NXDOMAIN" in started.failure.message
    good = last_good(deployment)
    assert good is not None
    assert good.values["MAX_MODEL_LEN"] == "2048"


def test_an_engine_returns_to_the_routers_list_if_the_wait_for_its_requests_is_interrupted(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = written(tmp_path, REPLICAS="2")
    write_workers(deployment, (member.worker for member in members_of(deployment, planned(deployment))))

    def interrupted(member: Member, routes: Routes, **_: object) -> None:
        routes.drop(member)
        raise KeyboardInterrupt

    # the router takes every list over, and finds the engine healthy
    monkeypatch.setattr(Routes, "_wait_for", lambda routes, urls, *, since: None)
    monkeypatch.setattr(Routes, "_wait_until_used", lambda routes, url: None)
    monkeypatch.setattr(rolling, "several_runtime", around.runtime)
    monkeypatch.setattr(rolling, "plan_of", planned)
    monkeypatch.setattr(rolling, "take_out", interrupted)
    with pytest.raises(KeyboardInterrupt), set_apart(deployment.replica(1), lambda text: None):
        pass
    assert [worker.id for worker in written_workers(deployment)] == ["1", "2"]
