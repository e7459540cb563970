"""Texts stay texts in the YAML of exports, also where other readers than PyYAML take them for numbers."""

from dataclasses import replace

import pytest
import yaml

from dflash_deploy.features.export.folder import folder, yaml_of
from dflash_deploy.features.export.manifests import Cluster
from tests.support.manifests import plan_for, source_for

NUMBERS_IN_GO = ["1e6", "-1e3", "1.5e3", ".5e3", "1e+6", "08", "12345678901234e5", "1_000e2", "0o17", "y", "N"]
"""Read as numbers or booleans by kubectl and Compose if they have no quotes."""


@pytest.mark.parametrize("text", NUMBERS_IN_GO)
def test_what_go_reads_as_a_number_has_quotes(text: str) -> None:
    written = yaml_of({"data": {"A": text}})
    assert written == f"data:\n  A: '{text}'\n"
    assert yaml.safe_load(written) == {"data": {"A": text}}


def test_other_values_are_written_as_before() -> None:
    document = {"c": 3, "f": 0.5, "t": True, "s": "text", "i": "3", "v": "1.2.3", "h": "1e2f", "e": "", "m": "10m"}
    written = yaml_of(document)
    assert written == "c: 3\nf: 0.5\nt: true\ns: text\ni: '3'\nv: 1.2.3\nh: 1e2f\ne: ''\nm: 10m\n"
    assert yaml.safe_load(written) == document


def test_a_setting_that_looks_like_a_number_is_text_in_the_config_map() -> None:
    source = source_for(plan_for("h100"))
    source = replace(source, environment={**source.environment, "EXTRA": "1e6"})
    assert "  EXTRA: '1e6'\n" in folder(source, Cluster())["base/settings.yaml"]
