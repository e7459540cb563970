"""`upgrade`: what changes, what stays, and which settings `.env` has at each step."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_deploy import planning
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment, changes, remember_good
from dflash_deploy.deployment.upgrading import (
    begin_upgrade,
    forget_upgrade,
    keep_upgrade,
    planned_before,
    remember_planned,
)
from dflash_deploy.errors import EngineNotReady, NotPossible, PreflightRefused, UnknownEngine
from dflash_deploy.intake.documents import PlannedSettings
from dflash_deploy.operations import plan
from dflash_deploy.operations import upgrade as operation
from dflash_deploy.operations.plan import init
from dflash_deploy.operations.up import Start
from dflash_deploy.operations.upgrade import Upgraded, Wish, look, upgrade
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


def test_settings_of_the_program_change_with_a_reason_and_those_of_the_user_stay(box: Path) -> None:
    written_by_an_older_program(box, MAX_NUM_BATCHED_TOKENS="4096", KV_CACHE_DTYPE="fp8_old")
    edit_env(box, GPU_MEMORY_UTILIZATION="0.71", NCCL_DEBUG="INFO")
    found = look(box)
    assert names(found).keys() == {"MAX_NUM_BATCHED_TOKENS", "KV_CACHE_DTYPE"}
    assert all(row.reason for row in found.changes)
    assert set(found.kept) == {"DFLASH_PORT", "GPU_MEMORY_UTILIZATION", "NCCL_DEBUG"}
    assert found.outdated is not None


def test_a_base_image_that_was_pinned_is_the_programs_and_moves_with_its_tag_only(box: Path) -> None:
    tag = Deployment(box).values["DFLASH_BASE_IMAGE"]
    edit_env(box, DFLASH_BASE_IMAGE=f"{tag}@sha256:{'0' * 64}")
    assert look(box).changes == ()
    written_by_an_older_program(box, DFLASH_BASE_IMAGE="vllm/vllm-openai:v0.31.0")
    edit_env(box, DFLASH_BASE_IMAGE=f"vllm/vllm-openai:v0.31.0@sha256:{'0' * 64}")
    assert names(look(box)) == {"DFLASH_BASE_IMAGE": (f"vllm/vllm-openai:v0.31.0@sha256:{'0' * 64}", tag)}


def test_an_engine_release_that_the_user_wrote_stays(box: Path) -> None:
    edit_env(box, DFLASH_ENGINE="sglang")
    found = look(box)
    assert "DFLASH_ENGINE" in found.kept
    assert "DFLASH_ENGINE" not in names(found)


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


def test_without_a_record_of_what_was_planned_every_value_is_the_users(box: Path) -> None:
    (box / ".dflash" / "planned.json").unlink()
    edit_env(box, MAX_NUM_BATCHED_TOKENS="4096")
    found = look(box)
    assert found.changes == ()
    assert {"DFLASH_PORT", "MAX_NUM_BATCHED_TOKENS", "MAX_NUM_SEQS"} < set(found.kept)


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


def test_settings_that_up_would_refuse_change_nothing(box: Path) -> None:
    written_by_an_older_program(box, MAX_NUM_BATCHED_TOKENS="4096")
    edit_env(box, EXTRA_ARGS="--enable-foo")
    before = (box / ".env").read_bytes()
    with pytest.raises(PreflightRefused, match="--enable-foo"):
        upgrade(box)
    with pytest.raises(PreflightRefused, match=r"nothing changed.*(GiB|memory|fit)"):
        upgrade(box, Wish(model="qwen3.5-397b-a17b-fp8"))
    assert (box / ".env").read_bytes() == before


def test_a_no_changes_nothing(box: Path) -> None:
    written_by_an_older_program(box, MAX_NUM_BATCHED_TOKENS="4096")
    remember_good(Deployment(box))
    before = {file: file.read_bytes() for file in (box / ".env", box / "compose.yaml")}
    assert upgrade(box, agree=lambda found: False).outcome == "planned"
    assert {file: file.read_bytes() for file in before} == before


def test_settings_that_never_ran_are_tried_by_up_first(box: Path) -> None:
    written_by_an_older_program(box, MAX_NUM_BATCHED_TOKENS="4096")
    with pytest.raises(NotPossible, match="did not run yet"):
        upgrade(box)
    remember_good(Deployment(box))
    edit_env(box, GPU_MEMORY_UTILIZATION="0.71")
    with pytest.raises(NotPossible, match="did not run yet"):
        upgrade(box)


def begun(box: Path) -> tuple[Deployment, Deployment]:
    """A deployment before and after an upgrade of one setting that changes, one that is new and one that goes."""
    written_by_an_older_program(box, MAX_NUM_SEQS="3", MAX_MODEL_LEN="9")
    old = Deployment(box)
    (box / "dflash.lock").write_text("before")
    new = {"MAX_NUM_SEQS": "8", "DFLASH_GOAL": "latency", "MAX_MODEL_LEN": ""}
    begin_upgrade(old, PlannedSettings(program="1", values={"MAX_NUM_SEQS": "8"}), new)
    (box / "dflash.lock").write_text("after")
    return old, Deployment(box, text=old.text_with(new))


def test_the_values_of_env_say_which_settings_the_program_chose(box: Path) -> None:
    old, new = begun(box)
    found = [planned_before(one) for one in (old, new)]
    assert [one.program for one in found if one] == ["0.0.9", "1"]


def test_one_that_was_killed_before_env_was_written_leaves_nothing(box: Path) -> None:
    old, _ = begun(box)
    begin_upgrade(old, PlannedSettings(program="2", values={}), {"MAX_NUM_SEQS": "9"})
    forget_upgrade(old)
    known = planned_before(old)
    assert known is not None
    assert (known.program, known.before, (box / "dflash.lock").read_text()) == ("0.0.9", None, "before")


def test_one_that_was_killed_after_env_was_written_goes_either_way(box: Path) -> None:
    old, new = begun(box)
    edit_env(box, MAX_NUM_SEQS="8", DFLASH_GOAL="latency")
    forget_upgrade(Deployment(box))
    before = planned_before(new)
    assert before is not None
    assert before.before is not None
    # `up` has kept it, and another one begins
    begin_upgrade(Deployment(box), PlannedSettings(program="2", values={}), {"MAX_MODEL_LEN": "7"})
    known = planned_before(Deployment(box))
    assert known is not None
    assert (known.program, known.before) == ("1", None)
    remember_planned(Deployment(box), before)
    keep_upgrade(new)
    known = planned_before(old)
    assert known is not None
    assert (known.program, known.before, (box / "dflash.lock").read_text()) == ("1", None, "after")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """MAX_NUM_SEQS of each start of an upgrade whose engines are not real."""
    begun: list[str] = []

    def start_and_check(how: Start, deployment: Deployment, plan: object) -> SimpleNamespace:
        begun.append(deployment.values["MAX_NUM_SEQS"])
        if how.remembers:
            remember_good(deployment)
        return SimpleNamespace(failure=None)

    monkeypatch.setattr(operation, "with_weights", lambda deployment, *_, **__: plan_of(deployment))
    monkeypatch.setattr(operation, "engine_work", lambda *_: nullcontext())
    monkeypatch.setattr(operation, "test", lambda *_, **__: SimpleNamespace(failure=None))
    monkeypatch.setattr(Start, "start_and_check", start_and_check)
    return begun


def test_settings_that_pass_are_the_last_good_ones(box: Path, starts: list[str]) -> None:
    written_by_an_older_program(box, MAX_NUM_SEQS="3")
    remember_good(Deployment(box))
    assert (upgrade(box).outcome, starts) == ("kept", ["16"])
    assert changes(Deployment(box)) == ()
    assert look(box).outcome == "current"
    assert not Deployment(box).entry.exists()


def test_one_that_was_killed_while_it_tried_tries_again_without_a_question(
    box: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    written_by_an_older_program(box, MAX_NUM_SEQS="3")
    remember_good(Deployment(box))
    with monkeypatch.context() as patch:
        patch.setattr(operation, "test", killed)
        with pytest.raises(KeyboardInterrupt):
            upgrade(box)
    # what `rollback` restores
    assert [(row.name, row.good, row.now) for row in changes(Deployment(box))] == [("MAX_NUM_SEQS", "3", "16")]
    assert (upgrade(box, agree=lambda found: False).outcome, starts) == ("kept", ["16", "16"])
    assert changes(Deployment(box)) == ()


def test_an_image_that_cannot_be_pulled_leaves_the_old_engine(
    box: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = Start.start_and_check

    def start_and_check(start: Start, deployment: Deployment, plan: Plan) -> object:
        done = starting(start, deployment, plan)
        if deployment.values["MAX_NUM_SEQS"] == "16":
            # as ComposeRuntime.start: `docker compose up` fails before it replaces the container
            raise EngineNotReady("an image could not be pulled from its registry", hint="check DFLASH_BASE_IMAGE")
        return done

    written_by_an_older_program(box, MAX_NUM_SEQS="3")
    remember_good(Deployment(box))
    monkeypatch.setattr(Start, "start_and_check", start_and_check)
    before = (box / ".env").read_bytes()
    done = upgrade(box)
    assert (done.outcome, starts) == ("back", ["16", "3"])
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
    remember_good(Deployment(box))
    assert names(look(box))["EXTRA_ARGS"] == ("", "--max-logprobs 3")
    assert upgrade(box).outcome == "back"
    assert len(starts) == 2
    assert plan_of(Deployment(box)).values["EXTRA_ARGS"] == ""
    # the next upgrade proposes it again: it is no setting of the user
    assert "EXTRA_ARGS" in names(look(box))
