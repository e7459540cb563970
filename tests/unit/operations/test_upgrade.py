"""`upgrade`: what changes, what stays, what is slower, and which settings `.env` has at each step."""

import errno
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from dflash_deploy import planning
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment import files
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.upgrading import (
    differences,
    planned_before,
    remember_planned,
    remember_upgrade,
    settle_upgrade,
    unfinished_upgrade,
)
from dflash_deploy.errors import BadInput, EngineNotReady, NotPossible, PreflightRefused, SettingsRefused, UnknownEngine
from dflash_deploy.intake.documents import PlannedSettings, UpgradeState
from dflash_deploy.operations import plan
from dflash_deploy.operations import upgrade as operation
from dflash_deploy.operations.plan import init
from dflash_deploy.operations.up import Start
from dflash_deploy.operations.upgrade import look, slower, upgrade
from dflash_deploy.operations.upgrade_plan import Upgraded, Wish, merged_arguments, newest
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import catalog_for, plan_of
from tests.support.cli import edit_env
from tests.support.machines import MACHINES

VLLM = load_catalog().engines["vllm-0.33"]


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (planning, plan):
        monkeypatch.setattr(module, "read_facts", lambda: MACHINES["h100"])
    init(tmp_path, Choice(profile="h100", runtime="compose", port=9000, models_dir=Path("/srv/weights")))
    return tmp_path


def written_by_an_older_program(box: Path, **values: str) -> None:
    """Make `.env` and what the program planned for it those of an older catalog."""
    edit_env(box, **values)
    known = planned_before(Deployment(box))
    assert known is not None
    remember_planned(Deployment(box), PlannedSettings(program="0.0.9", values={**known.values, **values}))


def names(found: Upgraded) -> dict[str, tuple[str, str]]:
    return {row.name: (row.old, row.new) for row in found.changes}


def test_what_init_has_just_written_is_current(box: Path) -> None:
    found = look(box)
    assert (found.outcome, found.changes, found.kept, found.outdated) == ("current", (), ("DFLASH_PORT",), None)
    # the weights are not here yet: nothing was locked
    assert "dflash.lock" in found.unknown[0]


def test_settings_of_the_program_change_with_a_reason_and_those_of_the_user_stay(box: Path) -> None:
    written_by_an_older_program(box, MAX_NUM_BATCHED_TOKENS="4096", KV_CACHE_DTYPE="fp8_old")
    edit_env(box, GPU_MEMORY_UTILIZATION="0.71", NCCL_DEBUG="INFO")
    found = look(box)
    assert names(found).keys() == {"MAX_NUM_BATCHED_TOKENS", "KV_CACHE_DTYPE"}
    assert all(row.reason for row in found.changes)
    assert set(found.kept) == {"DFLASH_PORT", "GPU_MEMORY_UTILIZATION", "NCCL_DEBUG"}
    assert [(one.what, one.now) for one in found.newer if one.what == "program"] == [("program", "0.0.9")]
    assert found.outdated is not None


def test_a_release_that_the_catalog_no_longer_has_is_replaced_by_the_newest_of_its_line(box: Path) -> None:
    written_by_an_older_program(box, DFLASH_ENGINE="vllm-0.31", DFLASH_BASE_IMAGE="vllm/vllm-openai:v0.31.0")
    found = look(box)
    assert names(found)["DFLASH_ENGINE"] == ("vllm-0.31", "vllm-0.33")
    assert names(found)["DFLASH_BASE_IMAGE"][0] == "vllm/vllm-openai:v0.31.0"
    assert names(found).keys() == {"DFLASH_ENGINE", "DFLASH_BASE_IMAGE"}
    with pytest.raises(UnknownEngine):
        plan_of(Deployment(box))


def test_a_deployment_keeps_the_release_that_it_was_written_for(tmp_path: Path) -> None:
    for release in load_catalog().engines.values():
        older = release.model_copy(update={"name": f"{release.name}.0"})
        kept = older.model_dump(mode="json", exclude_defaults=True)
        remember_planned(Deployment(tmp_path), PlannedSettings(program="0.0.9", release=kept, values={}))
        assert catalog_for(Deployment(tmp_path)).engines[older.name] == older
    damages: tuple[dict[str, object], ...] = ({"name": "damaged"}, {"name": []}, {})
    for damaged in damages:
        remember_planned(Deployment(tmp_path), PlannedSettings(program="0.0.9", release=damaged, values={}))
        assert catalog_for(Deployment(tmp_path)).engines == load_catalog().engines


def test_the_way_back_can_be_planned_after_its_release_left_the_catalog(box: Path) -> None:
    kept = VLLM.model_copy(update={"name": "vllm-0.31", "version": "0.31.0"}).model_dump(mode="json")
    edit_env(box, DFLASH_ENGINE="vllm-0.31")
    known = planned_before(Deployment(box))
    assert known is not None
    remember_planned(Deployment(box), known.model_copy(update={"release": kept}))
    assert plan_of(Deployment(box)).engine.name == "vllm-0.31"
    assert names(look(box)) == {"DFLASH_ENGINE": ("vllm-0.31", "vllm-0.33")}


def test_without_a_record_of_what_was_planned_an_unknown_value_is_the_users(box: Path) -> None:
    (box / ".dflash" / "planned.json").unlink()
    edit_env(box, MAX_NUM_BATCHED_TOKENS="4096")
    found = look(box)
    assert found.changes == ()
    assert set(found.kept) == {"DFLASH_PORT", "MAX_NUM_BATCHED_TOKENS"}


def test_another_model_goes_beside_the_weights_and_keeps_the_endpoint(box: Path) -> None:
    edit_env(box, DFLASH_NUM_SPEC_TOKENS="3", MAX_NUM_SEQS="2")
    found = look(box, Wish(model="qwen3.5-35b-a3b-fp8"))
    changed = names(found)
    assert changed["DFLASH_PAIR"][1] == "qwen3.5-35b-a3b-fp8"
    assert Path(changed["MODEL_HOST_PATH"][1]).parent == Path("/srv/weights")
    # the number of draft tokens was for the other drafter
    assert "DFLASH_NUM_SPEC_TOKENS" in changed
    assert set(found.kept) == {"DFLASH_PORT", "MAX_NUM_SEQS"}


def test_a_drafter_that_is_off_stays_off_for_the_same_model(box: Path) -> None:
    edit_env(box, DFLASH_DRAFTER="off")
    found = look(box)
    assert "DFLASH_DRAFTER" in found.kept
    assert "DFLASH_DRAFTER" not in names(found)


def test_the_recipe_of_init_is_the_recipe_of_an_upgrade(tmp_path: Path, box: Path) -> None:
    place = tmp_path / "recipe"
    init(place, Choice(profile="h100", runtime="compose", recipe="qwen3.8-vllm"))
    assert look(place).outcome == "current"
    assert look(box, Wish(recipe="qwen3.8-vllm")).changes


def test_settings_that_up_would_refuse_change_nothing(box: Path) -> None:
    written_by_an_older_program(box, DFLASH_ENGINE="vllm-0.31")
    edit_env(box, EXTRA_ARGS="--enable-foo")
    before = (box / ".env").read_bytes()
    with pytest.raises(PreflightRefused, match="--enable-foo"):
        upgrade(box)
    with pytest.raises(NotPossible):
        upgrade(box, Wish(model="qwen3.5-27b-gguf", engine="vllm-0.33"))
    with pytest.raises(PreflightRefused, match=r"nothing changed.*(GiB|memory|fit)"):
        upgrade(box, Wish(model="qwen3.5-397b-a17b-fp8"))
    edit_env(box, EXTRA_ARGS="--seed '3")
    with pytest.raises(SettingsRefused):
        look(box)
    edit_env(box, EXTRA_ARGS="--enable-foo")
    assert (box / ".env").read_bytes() == before
    assert unfinished_upgrade(Deployment(box)) is None


def test_a_no_changes_nothing(box: Path) -> None:
    written_by_an_older_program(box, MAX_NUM_BATCHED_TOKENS="4096")
    before = {file: file.read_bytes() for file in (box / ".env", box / "compose.yaml")}
    assert upgrade(box, agree=lambda found: False).outcome == "planned"
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize(
    ("own", "planned", "proposed", "then"),
    [
        ("--seed 3", "", "", {}),
        ("--task generate --seed 3", "", "", {"EXTRA_ARGS": "--runner generate --seed 3"}),
        ("--task=generate", "", "", {"EXTRA_ARGS": "--runner generate"}),
        ("--swap-space 4 --seed 3", "", "", {"EXTRA_ARGS": "--seed 3"}),
        ("--num_speculative_tokens 5", "", "", {"EXTRA_ARGS": "", "DFLASH_NUM_SPEC_TOKENS": "5"}),
        ("--ours 1 --seed 3", "--ours 1", "--ours 2 --more", {"EXTRA_ARGS": "--ours 2 --more --seed 3"}),
        ("--ours 9", "--ours 1", "--ours 2", {"EXTRA_ARGS": "--ours 9"}),
        ("--seed 3", "--ours 1", "--ours 2", {"EXTRA_ARGS": "--seed 3"}),
        ("--mm '{\"a b\": 1}'", "--ours 1", "--ours 2", {}),
    ],
)
def test_own_arguments_stay_under_their_present_names(
    own: str, planned: str, proposed: str, then: dict[str, str]
) -> None:
    merged, why = merged_arguments(own, planned, proposed, VLLM, load_catalog())
    assert merged == then
    assert bool(why) == bool(then)


@pytest.mark.parametrize(
    ("name", "best"),
    [("vllm-0.20", "vllm-0.33"), ("vllm-0.99", "vllm-0.33"), ("vllm-cpu-0.1", "vllm-cpu-0.32"), ("mine", "mine")],
)
def test_the_newest_release_is_of_the_same_line(name: str, best: str) -> None:
    assert newest(name, load_catalog().engines) == best


def test_a_newer_release_than_the_catalogs_newest_stays() -> None:
    newer = VLLM.model_copy(update={"name": "vllm-0.34", "version": "0.34.0"})
    assert newest("vllm-0.34", {"vllm-0.33": VLLM, "vllm-0.34": newer}) == "vllm-0.34"
    assert newest("vllm-0.33", {"vllm-0.33": VLLM, "vllm-0.34": newer}) == "vllm-0.34"


@pytest.mark.parametrize(
    ("before", "after", "is_slower"),
    [
        ((100, 101, 99, 100, 102, 98, 100), (100, 99, 101, 100, 98, 102, 100), False),
        ((100, 101, 99, 100, 102, 98, 100), (97, 96, 98, 97, 96, 97, 98), False),
        ((100, 101, 99, 100, 102, 98, 100), (90, 91, 89, 90, 92, 88, 90), True),
        # one repeat that was disturbed, before and after
        ((100, 101, 99, 100, 102, 98, 30), (90, 91, 89, 90, 92, 88, 90), True),
        ((100, 101, 99, 100, 102, 98, 100), (100, 30, 101, 100, 98, 102, 100), False),
        # repeats that differ more than the medians
        ((100, 60, 140, 80, 120, 70, 130), (90, 50, 130, 70, 110, 60, 120), False),
        ((100, 101, 99), (), False),
    ],
)
def test_slower_is_what_repeats_do_not_explain(
    before: tuple[float, ...], after: tuple[float, ...], is_slower: bool
) -> None:
    assert bool(slower({"code": before}, {"code": after})) is is_slower
    assert not slower({}, {"code": after})


def begun(box: Path) -> UpgradeState:
    """An upgrade of one setting that changes, one that is new and one that goes."""
    old = Deployment(box).values["MAX_NUM_SEQS"]
    changes = {"MAX_NUM_SEQS": (old, "3"), "DFLASH_GOAL": ("", "latency"), "MAX_MODEL_LEN": ("9", "")}
    edit_env(box, MAX_MODEL_LEN="9")
    state = UpgradeState(step="try", changes=changes, planned=PlannedSettings(program="1", values={}), lock="before")
    remember_upgrade(Deployment(box), state)
    return state


def test_the_settings_of_each_side_are_known_and_the_users_stay(box: Path) -> None:
    state, deployment = begun(box), Deployment(box)
    assert not differences(state, deployment, back=True)
    there = deployment.with_values({row.name: row.good for row in differences(state, deployment, back=False)})
    assert not differences(state, there, back=False)
    edit_env(box, DFLASH_PORT="9009")
    back = Deployment(box)
    back = back.with_values({row.name: row.good for row in differences(state, back, back=True)})
    assert not differences(state, back, back=True)
    assert back.values["DFLASH_PORT"] == "9009"


def test_one_that_did_not_end_is_no_other(box: Path) -> None:
    state = begun(box)
    with pytest.raises(BadInput, match="has not ended"):
        upgrade(box, Wish(engine="sglang"))
    assert unfinished_upgrade(Deployment(box)) == state


@pytest.mark.parametrize("kept", [True, False])
def test_the_end_leaves_no_state_and_the_lock_of_what_runs(box: Path, kept: bool) -> None:
    state, deployment = begun(box), Deployment(box)
    (box / "dflash.lock").write_text("after")
    deployment.next_entry.write_text("an entry")
    settle_upgrade(deployment, state, kept=kept)
    assert unfinished_upgrade(deployment) is None
    assert (box / "dflash.lock").read_text() == ("after" if kept else "before")
    assert (deployment.entry.exists(), deployment.next_entry.exists()) == (kept, False)
    known = planned_before(deployment)
    assert known is not None
    assert (known.program == "1") is kept


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """MAX_NUM_SEQS of each start of an upgrade whose engines are not real."""
    begun: list[str] = []

    def and_check(_: object, deployment: Deployment, plan: object) -> SimpleNamespace:
        begun.append(deployment.values["MAX_NUM_SEQS"])
        return SimpleNamespace(failure=None)

    monkeypatch.setattr(operation, "with_weights", lambda deployment, *_, **__: plan_of(deployment))
    monkeypatch.setattr(operation, "engine_work", lambda *_: nullcontext())
    monkeypatch.setattr(operation, "test", lambda *_, **__: SimpleNamespace(failure=None))
    monkeypatch.setattr(operation._Trial, "_speed_before", lambda *_: {})
    monkeypatch.setattr(Start, "and_check", and_check)
    return begun


def test_an_image_that_cannot_be_pulled_leaves_the_old_engine(
    box: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = Start.and_check

    def and_check(start: Start, deployment: Deployment, plan: Plan) -> object:
        done = starting(start, deployment, plan)
        if deployment.values["MAX_NUM_SEQS"] == "8":
            # as ComposeRuntime.start: `docker compose up` fails before it replaces the container
            raise EngineNotReady("an image could not be pulled from its registry", hint="check DFLASH_BASE_IMAGE")
        return done

    written_by_an_older_program(box, MAX_NUM_SEQS="3")
    monkeypatch.setattr(Start, "and_check", and_check)
    before = (box / ".env").read_bytes()
    done = upgrade(box)
    assert (done.outcome, starts) == ("back", ["8", "3"])
    assert isinstance(done.failure, EngineNotReady)
    assert done.failure.message == "an image could not be pulled from its registry; the old settings run again"
    assert (box / ".env").read_bytes() == before


def test_a_setting_that_only_the_newer_catalog_has_does_not_stay(
    box: Path, starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "profiles"
    own.mkdir(parents=True)
    setting = "{value: --max-logprobs 3, reason: planted by this test}"
    (own / "h100.yaml").write_text(f"{{name: h100, extends: h100, settings: {{EXTRA_ARGS: {setting}}}}}")
    monkeypatch.setenv("DFLASH_CATALOG", str(own.parent))
    monkeypatch.setattr(operation, "test", lambda *_, **__: SimpleNamespace(failure=EngineNotReady("ended", hint="")))
    assert names(look(box))["EXTRA_ARGS"] == ("", "--max-logprobs 3")
    assert upgrade(box).outcome == "back"
    assert len(starts) == 2
    assert plan_of(Deployment(box)).values["EXTRA_ARGS"] == ""
    # the next upgrade proposes it again: it is no setting of the user
    assert "EXTRA_ARGS" in names(look(box))


@pytest.mark.parametrize(("room_at", "outcome"), [("_speed_before", ""), ("_written", "back"), ("test", "back")])
def test_a_full_disk_at_any_step_leaves_the_old_engine(
    box: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch, room_at: str, outcome: str
) -> None:
    """No write to the disk succeeds after that step, as long as the space for the way back is taken."""
    steps, room = operation if room_at == "test" else operation._Trial, box / ".dflash" / "upgrade.room"
    step, to_disk, full = getattr(steps, room_at), files._to_disk, []

    def fills(*told: object, **how: object) -> object:
        done = step(*told, **how)
        full.append(True)
        return done

    def disk(file: BinaryIO) -> None:
        if full and room.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        to_disk(file)

    written_by_an_older_program(box, MAX_NUM_SEQS="3")
    monkeypatch.setattr(steps, room_at, fills)
    monkeypatch.setattr(files, "_to_disk", disk)
    before = (box / ".env").read_bytes()
    if outcome:
        done = upgrade(box)
        assert (done.outcome, starts) == (outcome, ["8", "3"])
        assert isinstance(done.failure, PreflightRefused)
        assert "No space left on device; the old settings run again" in done.failure.message
    else:
        with pytest.raises(PreflightRefused, match="No space left") as refusal:
            upgrade(box)
        assert refusal.value.message.startswith("nothing changed")
        assert starts == []
    assert (box / ".env").read_bytes() == before
    assert (unfinished_upgrade(Deployment(box)), room.exists()) == (None, False)
