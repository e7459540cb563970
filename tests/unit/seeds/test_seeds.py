"""Each launch command of the seeds: the plan for that hardware carries its settings, or commands.yaml says why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import UnknownPair
from dflash_deploy.foreign.forms import read_recipe
from dflash_deploy.foreign.items import RecipeRefused
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.operations.foreign import ForeignPlan, plan_from
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import make_plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.engines import ENGINES
from tests.support.machines import MACHINES
from tests.unit.seeds.command import DRAFTERS, WEIGHTS, Command, Value, normal, parse, parse_words, same_weights


@dataclass(frozen=True)
class Seed:
    """One command of commands.yaml."""

    id: str
    profile: str
    text: str
    wishes: Mapping[str, Any] = field(default_factory=dict)
    differences: Mapping[str, str] = field(default_factory=dict)
    gpus_in_machine: int | None = None
    in_words: str = ""
    no_counterpart: str = ""
    drafter_as_model: str = ""

    def __str__(self) -> str:
        return self.id

    @property
    def facts(self) -> HostFacts:
        """The machine of the profile, with further GPUs of its kind where the seed's has them."""
        facts = MACHINES[self.profile]
        if self.gpus_in_machine is None:
            return facts
        return replace(facts, gpus=tuple(replace(facts.gpus[0], index=i) for i in range(self.gpus_in_machine)))


DOCUMENT = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))
SEEDS = [Seed(**entry) for entry in DOCUMENT["commands"]]
LEFT_OUT: dict[str, str] = DOCUMENT["left_out"]
OURS_ALONE: dict[str, str] = DOCUMENT["ours_alone"]
COMPOSE_OF_S0 = Path(__file__).parents[1] / "deployment" / "seeds" / "docker-compose.dflash.yml"
COMPARED = [seed for seed in SEEDS if not seed.no_counterpart and not seed.drafter_as_model]


def planned(seed: Seed) -> Plan:
    return plan_deployment(seed.facts, Choice(profile=seed.profile, **seed.wishes), load_catalog())


def surroundings(plan: Plan, directory: Path) -> dict[str, Value]:
    """Variables and options of our container, as `docker run` would name them."""
    create(Deployment(directory), plan)
    deployment = Deployment(directory)
    service = yaml.safe_load(deployment.compose_file.read_text())["services"]["engine"]
    values = deployment.values
    found: dict[str, Value] = {
        name: normal(values.get(name, value) if "$" in value else value)
        for name, value in service["environment"].items()
    }
    found["image"] = values["DFLASH_BASE_IMAGE"]
    found["--shm-size"] = values["DFLASH_SHM_SIZE"]
    found["--gpus"] = service["deploy"]["resources"]["reservations"]["devices"][0]["count"]
    options = {"ipc": "--ipc", "mem_limit": "--memory", "memswap_limit": "--memory-swap"}
    return found | {flag: service[key] for key, flag in options.items() if key in service}


def differing(theirs: Command, ours: Mapping[str, Value], plan: Plan) -> set[str]:
    """Settings of theirs that ours does not have, or has with another value."""
    target, drafter = plan.pair.target, plan.pair.drafter
    differs: set[str] = set()
    for name, value in theirs.settings.items():
        if name in WEIGHTS:
            same = same_weights(value, target.repo or "", target.file)
        elif name in DRAFTERS:
            same = name in ours and same_weights(value, drafter.repo or "", drafter.file)
        else:
            same = ours.get(name) == value
        if not same and name not in LEFT_OUT:
            differs.add(name)
    return differs


@pytest.mark.parametrize("seed", COMPARED, ids=str)
def test_the_plan_carries_the_settings_of_the_seed_or_says_why_not(seed: Seed, tmp_path: Path) -> None:
    plan = planned(seed)
    theirs, ours = parse(seed.text), parse_words(engine_command(plan))
    differs = differing(theirs, {**surroundings(plan, tmp_path), **ours.settings}, plan)
    assert theirs.program in {"", ours.program}
    assert not differs - set(seed.differences), "these differ from the seed without a reason"
    assert not set(seed.differences) - differs, "these do not differ from the seed any more: take the reason out"


def beyond(seed: Seed) -> set[str]:
    """Settings of ours that the seed's whole command does not have."""
    theirs = parse(seed.text)
    ours = parse_words(engine_command(planned(seed)))
    return set(ours.settings) - set(theirs.settings) - set(LEFT_OUT) if theirs.program else set()


@pytest.mark.parametrize("seed", COMPARED, ids=str)
def test_what_the_plan_has_beyond_the_seed_has_a_reason(seed: Seed) -> None:
    assert beyond(seed) <= set(OURS_ALONE)


def test_no_common_reason_is_stale() -> None:
    assert set(OURS_ALONE) == set().union(*map(beyond, COMPARED))
    theirs = set().union(*(parse(seed.text).settings for seed in COMPARED))
    assert set(LEFT_OUT) <= theirs | {"--alias"}


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed.no_counterpart], ids=str)
def test_what_has_no_counterpart_is_no_program_of_ours(seed: Seed) -> None:
    programs = {list(ENGINES[engine.engine].program)[-1] for engine in load_catalog().engines.values()}
    assert parse(seed.text).program not in programs


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed.drafter_as_model], ids=str)
def test_a_drafter_asked_for_as_a_model_is_refused_with_the_targets_it_belongs_to(seed: Seed) -> None:
    asked = parse(seed.text).model
    pairs = load_catalog().pairs.values()
    belonging = [pair for pair in pairs if pair.drafter.repo == asked]
    with pytest.raises(UnknownPair, match=f"`{asked}` is a drafter") as refusal:
        plan_deployment(seed.facts, Choice(profile=seed.profile, model=asked), load_catalog())
    assert all(pair.name in refusal.value.hint for pair in belonging)
    assert seed.drafter_as_model in {pair.target.repo for pair in belonging}


# Seeds that name no target of the catalog, and what `init --from` says about it.
REFUSED = {
    "S1-llama-server": "`/path/to/Qwen3.5-27B-target.Q4_K_M.gguf` is not a known model",
    **dict.fromkeys(("S3-hub-vllm", "S3-hub-sglang", "S3-hub-docker-run"), "is a drafter"),
}
# Seeds that start no server: arguments alone, another program.
NO_ENGINE = ("S1-llama-speculative-simple", "S2-sglang-window", "S3-hub-docker-model-run")


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed.id not in NO_ENGINE], ids=str)
def test_taken_over_a_seed_changes_only_what_it_says(seed: Seed) -> None:
    edited = seed.wishes.get("edited", {})
    found = plan_from(seed.text, Choice(profile=seed.profile, edited=edited), seed.facts)
    assert all(row.why or row.fate == "taken" for row in found.items)
    if seed.id in REFUSED:
        assert REFUSED[seed.id] in str(found.failure)
        return
    assert found.plan is not None
    ours = make_plan(Choice(profile=seed.profile, **seed.wishes), facts=seed.facts)
    assert (found.plan.pair, found.plan.engine) == (ours.pair, ours.engine)
    assert unlike(found.plan, ours) <= set(found.choice.edited)


def unlike(one: Plan, other: Plan) -> set[str]:
    """The settings in which two plans differ."""
    return {name for name in {*one.values, *other.values} if one.values.get(name) != other.values.get(name)}


def test_the_command_that_removes_every_container_is_not_taken_over() -> None:
    seed = next(seed for seed in SEEDS if seed.id == "S3-rtx-3090-x4")
    choice = Choice(profile=seed.profile)
    found = plan_from(f"docker rm -f $(docker ps -aq)\n{seed.text}", choice, seed.facts)
    assert [row.fate for row in found.items if row.value.startswith("docker rm")] == ["dangerous"]
    assert found.choice == plan_from(seed.text, choice, seed.facts).choice


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed.id in NO_ENGINE], ids=str)
def test_a_seed_that_starts_no_server_is_refused(seed: Seed) -> None:
    with pytest.raises(RecipeRefused, match="starts no engine"):
        read_recipe(seed.text)


def test_the_files_of_the_first_seed_are_taken_over() -> None:
    found = taken_on_spark(COMPOSE_OF_S0.read_text(encoding="utf-8"))
    fates = {row.name: row.fate for row in found.items}
    assert fates["--network"] == "dangerous"
    assert (fates["VLLM_API_KEY"], fates["HF_TOKEN"], fates["MODEL_PATH"]) == ("not-taken", "not-taken", "taken")
    assert found.engine == "aeon-vllm-dflash"


def taken_on_spark(text: str) -> ForeignPlan:
    """A file of S0, whose plan differs from the profile's in what the file sets, and whose budget hangs the machine."""
    found = plan_from(text, Choice(profile="dgx-spark"), MACHINES["dgx-spark"])
    assert found.plan is not None
    ours = make_plan(Choice(profile="dgx-spark", engine=found.engine), facts=MACHINES["dgx-spark"])
    assert found.plan.pair == ours.pair
    assert unlike(found.plan, ours) <= set(found.choice.edited)
    assert "budget-hangs-unified-memory" in {finding.id for finding in found.plan.errors}
    return found


# What the card of S0 has people paste for its .env.
ENV_OF_S0 = """cat > .env.dflash << 'EOF'
# Authentication
HF_TOKEN=hf_your_token_here
VLLM_API_KEY=$(openssl rand -hex 32)
# Model path
MODEL_HOST_PATH=~/models/DFlash-Qwen3.5-27B-Uncensored-NVFP4
# DFlash speculative decoding (auto-downloads drafter on first run)
DFLASH_DRAFTER=z-lab/Qwen3.5-27B-DFlash
DFLASH_NUM_SPEC_TOKENS=15
# DGX Spark optimal settings (64K context, 4 concurrent sequences)
MAX_MODEL_LEN=65536
MAX_NUM_SEQS=4
GPU_MEMORY_UTILIZATION=0.85
MAX_NUM_BATCHED_TOKENS=65536
EOF
sed -i "s|\\$(openssl rand -hex 32)|$(openssl rand -hex 32)|" .env.dflash
"""


@pytest.mark.parametrize("text", [ENV_OF_S0, "\n".join(ENV_OF_S0.splitlines()[1:-2])], ids=("pasted", "file"))
def test_the_env_of_the_first_seed_is_taken_over_and_what_hangs_the_box_is_refused(text: str) -> None:
    found = taken_on_spark(text)
    fates = {row.name: row.fate for row in found.items}
    assert (fates["HF_TOKEN"], fates["VLLM_API_KEY"]) == ("dangerous", "not-taken")
    assert "hf_your" not in repr(found.items)
    assert [row.line for row in found.items if row.name == "MAX_NUM_SEQS"] == [12 - (text is not ENV_OF_S0)]


def test_every_seed_is_here_and_every_reason_is_a_sentence() -> None:
    assert {seed.id.split("-")[0] for seed in SEEDS} == {"S0", "S1", "S2", "S3"}
    assert len({seed.id for seed in SEEDS}) == len(SEEDS)
    reasons = [LEFT_OUT, OURS_ALONE, *(seed.differences for seed in SEEDS)]
    assert all(len(reason.split()) >= 2 for of_one in reasons for reason in of_one.values())
