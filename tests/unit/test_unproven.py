"""The page of what is not proven names every engine, tests that exist, and commands that this program has."""

import pytest

from dflash_deploy.catalog.load import load_catalog
from tools.readme import ROOT
from tools.reference import FOLDER
from tools.reference.unproven import PROVEN, UNPROVEN

TEXT = (FOLDER / "unproven.md").read_text(encoding="utf-8")


def test_it_speaks_of_every_engine_of_the_catalog() -> None:
    assert set(PROVEN) == set(UNPROVEN) == set(load_catalog().engines)


@pytest.mark.parametrize("test", sorted({test for proofs in PROVEN.values() for _, test in proofs}))
def test_each_proof_is_a_test_that_exists(test: str) -> None:
    assert (ROOT / test).is_file()


def test_each_profile_has_a_command_for_each_of_its_engines() -> None:
    for profile in load_catalog().profiles.values():
        for choice in profile.engines:
            assert f"--profile {profile.name} --engine {choice.release} --model " in TEXT


def test_it_claims_no_run_on_a_gpu_that_the_catalog_does_not_have() -> None:
    engines = load_catalog().engines.values()
    on_a_gpu = [engine.name for engine in engines if engine.evidence.state == "verified" and not engine.cpu]
    assert on_a_gpu == [], "change the page's first words"
    assert "This project has no GPU." in TEXT
