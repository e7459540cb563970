"""A folder of manifests is written again, and nothing of a person is overwritten."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from dflash_deploy.deployment.compose import RECORD, Origin, write_folder
from dflash_deploy.deployment.files import write_atomically
from dflash_deploy.errors import BadInput

MINE = Origin("mine")
TEXTS = {"README.md": "read\n", "base/a.yaml": "a: 1\n"}


def content(out: Path) -> dict[str, str]:
    files = (path for path in out.rglob("*") if path.is_file() and path.name != RECORD)
    return {str(path.relative_to(out)): path.read_text() for path in files}


def test_an_export_replaces_the_last_one_and_keeps_what_a_person_added(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, MINE, TEXTS)
    assert content(out) == TEXTS
    (out / "mine").mkdir()
    (out / "mine/kustomization.yaml").write_text("resources: [../base]\n")
    write_folder(out, MINE, {"README.md": "read again\n", "base/b.yaml": "b: 1\n"})
    assert content(out) == {
        "README.md": "read again\n",
        "base/b.yaml": "b: 1\n",
        "mine/kustomization.yaml": "resources: [../base]\n",
    }


def test_an_edited_file_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, MINE, TEXTS)
    (out / "base/a.yaml").write_text("a: edited\n")
    before = content(out)
    with pytest.raises(BadInput, match=r"base/a\.yaml was edited"):
        write_folder(out, MINE, {"README.md": "new\n", "base/a.yaml": "a: 2\n"})
    assert content(out) == before
    write_folder(out, MINE, {"README.md": "new\n"})
    assert content(out) == {"README.md": "new\n", "base/a.yaml": "a: edited\n"}


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_in_the_place_of_a_file_stays(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    write_folder(out, MINE, TEXTS)
    place = out / "base/b.yaml"
    match kind:
        case "file":
            place.write_text("b: mine\n")
        case "directory":
            place.mkdir()
        case _:
            place.symlink_to("missing")
    with pytest.raises(BadInput, match="written by someone else"):
        write_folder(out, MINE, {**TEXTS, "base/b.yaml": "b: 1\n"})
    assert content(out).keys() >= TEXTS.keys()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="has files that this command did not write"):
        write_folder(tmp_path, MINE, TEXTS)
    assert content(tmp_path) == {"notes.txt": "mine"}


def test_the_export_of_another_deployment_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", MINE, TEXTS)
    with pytest.raises(BadInput, match="has the export of another deployment: mine"):
        write_folder(tmp_path / "out", Origin("yours"), {"README.md": "yours\n"})
    assert content(tmp_path / "out") == TEXTS


def test_an_export_of_another_form_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", MINE, TEXTS)
    with pytest.raises(BadInput, match="has an export for kubernetes"):
        write_folder(tmp_path / "out", Origin("mine", "compose"), {"README.md": "mine\n"})
    assert content(tmp_path / "out") == TEXTS


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", MINE, TEXTS)
    (tmp_path / "out" / RECORD).write_text("{")
    with pytest.raises(BadInput, match=r"\.dflash-export\.json"):
        write_folder(tmp_path / "out", MINE, TEXTS)


@pytest.mark.parametrize("name", ["../mine.txt", "/etc/hostname"])
def test_a_record_that_names_other_files_is_refused(tmp_path: Path, name: str) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine.txt"
    mine.write_text("mine\n")
    write_folder(out, MINE, TEXTS)
    record = json.loads((out / RECORD).read_text())
    record["files"][name] = [sha256(b"mine\n").hexdigest()]
    (out / RECORD).write_text(json.dumps(record))
    with pytest.raises(BadInput, match="names files outside of its folder"):
        write_folder(out, MINE, TEXTS)
    assert mine.read_text() == "mine\n"


@pytest.mark.parametrize("written", range(5))
def test_an_export_that_was_killed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    out = tmp_path / "out"
    write_folder(out, MINE, TEXTS)
    real, left = write_atomically, [None] * written

    def killed(path: Path, text: str, *, mode: int) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        real(path, text, mode=mode)

    new = {"README.md": "new\n", "base/a.yaml": "a: 2\n"}
    monkeypatch.setattr("dflash_deploy.deployment.compose.write_atomically", killed)
    if written < 4:
        with pytest.raises(KeyboardInterrupt):
            write_folder(out, MINE, new)
    monkeypatch.setattr("dflash_deploy.deployment.compose.write_atomically", real)
    write_folder(out, MINE, new)
    assert content(out) == new


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    # the first one before the record is there, the second one after that
    for left in (f".{RECORD}.0123abcd", "base/.a.yaml.0123abcd"):
        (tmp_path / left).write_text("a:")
        write_folder(tmp_path, MINE, TEXTS)
        assert not (tmp_path / left).exists()
    assert content(tmp_path) == TEXTS


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(BadInput, match="out"):
        write_folder(tmp_path / "out", MINE, TEXTS)
    assert (tmp_path / "out").read_text() == "mine"
