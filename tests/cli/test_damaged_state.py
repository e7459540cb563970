"""A power cut may leave state files empty: `status`, `down` and `keys rotate` work all the same."""

import os
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from tests.support.cli import dflash, initialise


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    box = tmp_path_factory.mktemp("box")
    dflash("init", "--profile", "cpu", "--runtime", "native", at=box).succeeded()
    (box / ".dflash").mkdir(exist_ok=True)
    return box


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", b""),
        ("run.json", b"\0" * 120),
        ("run.json", b"[" * 100_000),
        ("run.json", None),
        ("last-start.json", b'{"loading": "\xff'),
    ],
)
def test_a_damaged_state_file_is_said_in_one_line_and_keeps_no_command_from_its_work(
    box: Path, file: str, content: bytes | None
) -> None:
    place = box / ".dflash" / file
    for command in (("status", "--json"), ("down", "--json"), ("keys", "rotate", "--json")):
        place.unlink(missing_ok=True)
        if content is None:
            os.mkfifo(place)
        else:
            place.write_bytes(content)
        ran = dflash(*command, at=box).succeeded()
        assert ran.document["status"] == "ok"
        lines = [line for line in ran.err.splitlines() if file in line]
        if file == "run.json":
            assert lines == [line for line in lines if line.endswith("moved to run.json.damaged")]
            assert len(lines) == 1


def test_what_is_said_of_a_damaged_file_is_one_line_without_secrets(tmp_path: Path) -> None:
    place = tmp_path / "hf_abcdefghijklmnopqrstuvwx \x1b[31m\n box"
    initialise("--profile", "cpu", "--runtime", "native", at=place)
    key = Deployment(place).key.reveal()
    inner = place.with_name(key)
    place.rename(inner)
    (inner / ".dflash" / "run.json").write_bytes(b"{")
    said = dflash("status", at=inner).succeeded().err
    assert "warning: " in said
    assert key not in said
    (inner / ".dflash" / "run.json").write_bytes(b"{")
    inner.rename(place)
    lines = [line for line in dflash("status", at=place).succeeded().err.splitlines() if "run.json" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: ")
    assert lines[0].endswith("moved to run.json.damaged")
    assert "\\x1b[31m" in lines[0]
