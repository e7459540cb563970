"""Each rule on a plan that breaks it, and on one that does not."""

from collections.abc import Mapping

import pytest

from dflash_deploy.catalog import load_catalog
from dflash_deploy.plan import Choice, Finding, plan_deployment
from tests.support.machines import LAPTOP, SPARK


def findings(edited: Mapping[str, str] | None = None, **choice: str) -> dict[str, Finding]:
    facts = SPARK if choice.get("profile") == "dgx-spark" else LAPTOP
    made = plan_deployment(facts, Choice(edited=edited or {}, **choice), load_catalog())  # type: ignore[arg-type]
    return {finding.id: finding for finding in made.findings}


@pytest.mark.parametrize(
    ("edited", "finding"),
    [
        ({"DFLASH_NUM_SPEC_TOKENS": "8"}, "draft-tokens-exceed-block"),
        ({"MAX_NUM_BATCHED_TOKENS": "31"}, "budget-too-small"),
    ],
)
def test_settings_that_end_badly_are_errors(edited: Mapping[str, str], finding: str) -> None:
    assert findings(edited)[finding].severity == "error"
    assert finding not in findings()


@pytest.mark.parametrize("edited", [{"DFLASH_NUM_SPEC_TOKENS": "7"}, {"MAX_NUM_BATCHED_TOKENS": "32"}])
def test_the_bounds_themselves_are_allowed(edited: Mapping[str, str]) -> None:
    assert not [finding for finding in findings(edited).values() if finding.severity == "error"]


def test_without_a_drafter_its_rules_say_nothing() -> None:
    edited = {"DFLASH_DRAFTER": "off", "DFLASH_NUM_SPEC_TOKENS": "99", "MAX_NUM_BATCHED_TOKENS": "31"}
    assert not {"draft-tokens-exceed-block", "budget-too-small"} & set(findings(edited))


def test_two_directories_for_one_drafter_are_one_too_many() -> None:
    twice = {"DFLASH_DRAFTER": "/data/mine", "DRAFTER_HOST_PATH": "/data/theirs"}
    assert findings(twice)["drafter-named-twice"].severity == "error"
    assert "drafter-named-twice" not in findings({"DFLASH_DRAFTER": "/data/mine", "DRAFTER_HOST_PATH": ""})
    assert "drafter-named-twice" not in findings()


def test_a_target_that_no_stock_engine_loads_is_an_error_with_a_way_out() -> None:
    found = findings(profile="dgx-spark")["target-needs-loader"]
    assert found.severity == "error"
    assert "qwen3.5-27b-fp8" in found.fix
    assert "target-needs-loader" not in findings(profile="dgx-spark", pair="qwen3.5-27b-fp8")


def test_listening_on_all_addresses_is_warned_about() -> None:
    assert findings({"DFLASH_BIND": "0.0.0.0"})["open-to-the-network"].severity == "warning"
    assert "open-to-the-network" not in findings({"DFLASH_BIND": "127.0.0.1"})


@pytest.mark.parametrize("host", ["localhost", "::1", "300.1.1.1"])
def test_docker_publishes_on_addresses(host: str) -> None:
    assert findings({"DFLASH_BIND": host, "DFLASH_RUNTIME": "compose"})["bind-is-no-address"].severity == "error"
    assert "bind-is-no-address" not in findings({"DFLASH_BIND": host, "DFLASH_RUNTIME": "native"})


def test_unified_memory_is_not_overcommitted() -> None:
    spark = {"profile": "dgx-spark"}
    assert findings({"GPU_MEMORY_UTILIZATION": "0.95"}, **spark)["unified-memory-overcommitted"].severity == "error"
    assert "unified-memory-overcommitted" not in findings({"GPU_MEMORY_UTILIZATION": "0.88"}, **spark)


def test_a_profile_for_other_hardware_is_warned_about() -> None:
    made = plan_deployment(LAPTOP, Choice(profile="dgx-spark"), load_catalog())
    assert "hardware-differs" in {finding.id for finding in made.findings}
