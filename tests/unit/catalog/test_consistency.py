"""No profile does what the same catalog warns of, unless it says so."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import dflash_deploy
from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import _contradictions, load_catalog
from dflash_deploy.catalog.releases import Bug, EngineRelease
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.errors import DeployError
from dflash_deploy.plan.choose import best
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES
from tests.support.rows import each_of

CATALOG = load_catalog()
FAILURES = CATALOG.failures

# What two entries have in common if they tell of the same thing.
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+|measured")

PLACES = [(profile, choice.release) for profile in CATALOG.profiles.values() for choice in profile.engines]

# Rules that warn of the settings of a profile, by engine, and why the profile has them nevertheless.
SAID: dict[tuple[str, str], str] = {
    ("llamacpp-buun", "answers-change"): "the profiles prefer upstream; the fork is there for those who name it",
    (
        "llamacpp-buun-cpu",
        "answers-change",
    ): "as above: the profile prefers vLLM and upstream",
    ("vllm-0.33", "master-address-missing"): "only the user knows the address of rank 0; `init` asks for it",
}


def place_name(place: tuple[Profile, str]) -> str:
    return f"{place[0].name}, {place[1]}"


def issues(text: str) -> set[str]:
    return set(ISSUE.findall(text))


def is_open(bug: Bug, release: EngineRelease) -> bool:
    return not bug.until or below(release.version, bug.until)


@each_of(PLACES, name=place_name)
def test_a_setting_that_a_known_bug_names_cites_the_report_of_the_bug(place: tuple[Profile, str]) -> None:
    profile, release = place
    engine, chosen = CATALOG.engines[release], profile.settings_for(release)
    for bug in engine.bugs:
        name, _, value = bug.setting.partition("=")
        if name not in chosen or value not in {"*", str(chosen[name].value)} or not is_open(bug, engine):
            continue
        assert issues(bug.source) & issues(chosen[name].source), f"{name}={value}: {bug.what} ({bug.source})"


def test_a_bug_names_a_setting_of_its_engine() -> None:
    for engine in CATALOG.engines.values():
        for bug in engine.bugs:
            if bug.setting:
                name, equals, value = bug.setting.partition("=")
                assert name in setting_names(engine.engine), bug.setting
                assert equals, bug.setting
                assert value, bug.setting


def plans(profile: Profile, release: str) -> Iterator[Plan]:
    """The plan with the profile's first pair, and with the one that this engine serves best."""
    for pair in (next(best(profile, CATALOG)).pair.name, None):
        try:
            yield plan_deployment(
                MACHINES[profile.name], Choice(profile=profile.name, engine=release, model=pair), CATALOG
            )
        except DeployError:
            # the engine does not serve this pair here
            continue


@each_of(PLACES, name=place_name)
def test_no_rule_warns_of_what_a_profile_sets(place: tuple[Profile, str]) -> None:
    profile, release = place
    found = {finding.id: finding for made in plans(profile, release) for finding in made.findings}
    warned = {name: one.message for name, one in found.items() if one.severity != "note"}
    assert {name: message for name, message in warned.items() if (release, name) not in SAID} == {}


# A value without quotes in which YAML takes the number of an issue for a comment.
CUT = re.compile(r"^\s*(?:- )?\w+: +[^'\">|{\[].*\s#\d")


def test_no_source_is_cut_at_the_number_of_an_issue() -> None:
    files = (Path(dflash_deploy.__file__).parent / "catalog").rglob("*.yaml")
    cut = [f"{file.name}: {line}" for file in files for line in file.read_text().splitlines() if CUT.match(line)]
    assert not cut


LINE = re.compile(r"\b([A-Z][A-Z_]{4,})=([\w.]+)")


@each_of(PLACES, name=place_name)
def test_no_profile_has_what_a_failure_on_its_hardware_tells_to_change(place: tuple[Profile, str]) -> None:
    profile, release = place
    engine, chosen = CATALOG.engines[release], profile.settings_for(release)
    for failure in FAILURES:
        here = any(name in failure.cause for name in profile.match.names)
        if not here or (failure.engines and engine.engine not in failure.engines):
            continue
        for name, value in [*LINE.findall(failure.do), *failure.fix.items()]:
            if name in chosen and value not in {"", "half", "enough", str(chosen[name].value)}:
                assert issues(failure.source) & issues(chosen[name].source), f"{name}: {failure.id}, {failure.do}"


def test_the_consistency_of_a_wrong_catalog_is_refused() -> None:
    """The tests above fail for the setting that they were written for."""
    spark = CATALOG.profiles["dgx-spark"]
    crash = next(failure for failure in FAILURES if "AEON-7/Qwen3.6-27B#16" in failure.source)
    assert "GB10" in crash.cause
    assert ("DFLASH_NUM_SPEC_TOKENS", "10") in LINE.findall(crash.do)
    assert "GB10" in spark.match.names
    assert str(spark.settings_for("aeon-ultimate-0.27")["DFLASH_NUM_SPEC_TOKENS"].value) == "10"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"pair": "qwen9"}, "names b200 and qwen9"),
        ({"profile": "b400"}, "names b400 and"),
        ({"engine": "llamacpp"}, "a speed of llamacpp on b200, which the profile does not offer"),
    ],
)
def test_a_speed_is_refused_beside_what_it_was_not_measured_with(changed: dict[str, str], says: str) -> None:
    catalog = load_catalog()
    row = catalog.speeds[0].model_copy(update=changed)
    assert [problem for problem in _contradictions(replace(catalog, speeds=(row,))) if says in problem]
