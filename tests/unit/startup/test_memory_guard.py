"""When an engine that loads into unified memory is stopped, and what is said then."""

from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import EngineStopped, ExitCode
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime.compose import ComposeRuntime
from dflash_deploy.runtime.protocol import EngineState, Runtime
from dflash_deploy.startup.start import LEAST_AVAILABLE, MemoryGuard, guard_for, is_short
from tests.support.machines import MACHINES, made_of
from tests.support.scripted import ScriptedRuntime

CATALOG = load_catalog()


def plan(profile: str, **wishes: Any) -> Plan:
    facts = MACHINES.get(profile) or made_of(CATALOG.profile(profile))
    return plan_deployment(facts, Choice(profile=profile, **wishes), CATALOG)


@pytest.mark.parametrize(
    ("available", "short"),
    [(None, False), (8 * GIB, False), (8 * GIB - 1, True), (0, True), (120 * GIB, False)],
)
def test_memory_is_short_below_the_threshold(available: int | None, short: bool) -> None:
    assert is_short(available, LEAST_AVAILABLE) is short


def test_only_unified_memory_is_guarded() -> None:
    runtime: Runtime = ScriptedRuntime([EngineState("running")])
    guarded = {name: guard_for(plan(name), runtime) is not None for name in ("dgx-spark", "thor", "h100", "cpu")}
    assert guarded == {"dgx-spark": True, "thor": True, "h100": False, "cpu": False}


def stopped(made: Plan) -> EngineStopped:
    guard = guard_for(made, ScriptedRuntime([EngineState("running")]))
    assert guard is not None
    guard._available = lambda: 7 * GIB
    with guard:
        guard._thread.join(10)
    with pytest.raises(EngineStopped) as problem:
        guard.check("after 42 s, while loading the target")
    return problem.value


def test_the_error_says_what_was_left_and_what_to_change() -> None:
    said = stopped(plan("dgx-spark", engine="vllm-0.33"))
    assert said.exit_code == ExitCode.NOT_READY
    assert said.message.startswith("stopped the engine after 42 s, while loading the target: only 7.0 GiB")
    assert "below 8.0 GiB" in said.message
    assert said.hint.startswith("lower GPU_MEMORY_UTILIZATION (now 0.7) or MAX_NUM_BATCHED_TOKENS in .env")
    # it has no share
    assert "MAX_MODEL_LEN" in stopped(plan("dgx-spark", model="qwen3.6-27b-gguf")).hint


def test_the_engine_is_stopped_once_and_at_once() -> None:
    calls: list[bool] = []

    class Noting(ScriptedRuntime):
        def halt(self, *, at_once: bool = False) -> None:
            calls.append(at_once)

    guard = guard_for(plan("dgx-spark"), Noting([EngineState("running")]))
    assert guard is not None
    left = iter([None, 9 * GIB, 8 * GIB, 5 * GIB])
    guard._available = lambda: next(left)
    with guard:
        guard._thread.join(10)
    assert calls == [True]


def test_enough_memory_stops_nothing() -> None:
    with MemoryGuard(lambda: pytest.fail("stopped"), "", available=lambda: 9 * GIB) as guard:
        guard.check("at any time")


def test_compose_gives_a_container_that_must_end_at_once_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(ComposeRuntime, "_compose", lambda self, *command: said.append(command))
    monkeypatch.setattr(ComposeRuntime, "_only", ())
    runtime = object.__new__(ComposeRuntime)
    runtime.halt()
    runtime.halt(at_once=True)
    assert said == [("stop", "--timeout", "45"), ("stop", "--timeout", "0")]
