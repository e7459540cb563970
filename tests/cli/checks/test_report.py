"""`test` of an endpoint by its URL, and the flags that make no sense."""

import re
from pathlib import Path

import pytest

from dflash_deploy.checks.run import CHECKS
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash
from tests.support.openai_server import KEY, Engine, serving
from tests.support.parsers.fetch import REPOSITORY


def test_an_endpoint_known_by_its_address_alone(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with serving(Engine()) as url:
        told = ("test", "--url", f"{url}/v1", "--key-file", "key", "--only", "text,models,size,reasoning", "--json")
        data = dflash(*told, at=tmp_path).succeeded().document["data"]
    assert {check["name"]: check["status"] for check in data["checks"]} == {
        "models": "passed",
        "text": "passed",
        "reasoning": "skipped",
        "size": "passed",
    }


def test_a_wrong_key_is_a_failed_test(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("of-somebody-else-0123456789")
    with serving(Engine()) as url:
        ran = dflash("test", "--url", url, "--key-file", "key", at=tmp_path)
    assert ran.code is ExitCode.SMOKE_TEST
    assert "401" in ran.err
    assert "of-somebody-else" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--only", "txt"], "`txt` is not a check"),
        (["--key-file", "key"], "belong to --url"),
        (["--soak", "1", "--only", "text"], "--soak is a test of its own"),
        (["--soak", "0"], "--soak"),
        (["--url", "https://me:secret-word@host"], "not a valid URL"),
        (["--url", "http://host:abc"], "not a valid URL"),
        (["--url", "http://[::1"], "not a valid URL"),
        (["--url", "http://"], "not a valid URL"),
        (["--url", "http://127.0.0.1:9", "--key-file", "absent"], "absent cannot be read"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: list[str], named: str, tmp_path: Path) -> None:
    ran = dflash("test", *flags, at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert named in ran.err
    assert "secret-word" not in ran.out + ran.err


def test_the_manual_has_every_check_in_order() -> None:
    rows = re.findall(r"^\| ((?:`[a-z]+` ?)+)\|", (REPOSITORY / "docs/reference/checks.md").read_text(), re.MULTILINE)
    assert [name for row in rows for name in re.findall("[a-z]+", row)] == list(CHECKS)
