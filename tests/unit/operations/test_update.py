"""`models update`: a newer catalog is checked, shown, kept, read by every command, and taken back."""

import json
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy import planning
from dflash_deploy.catalog import load
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import entry_text
from dflash_deploy.catalog.update import updates_file
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.doctor.check import DoctorContext
from dflash_deploy.doctor.deployment import newer_catalog
from dflash_deploy.errors import BadInput, CatalogRefused, ExitCode, FileRefused, NotPossible, PreflightRefused
from dflash_deploy.operations import described, plan, update
from dflash_deploy.operations.plan import init
from dflash_deploy.operations.update import CatalogUpdated, revert_catalog, update_catalog
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import UNREAD, plan_of, plan_to_stop
from tests.support.cli import invoke

EXAMPLE = Path(__file__).parents[3] / "docs" / "reference" / "catalog" / "update.yaml"
HEAD = {"date": "2026-12-01", "newer_than": "0.1.0"}
SETTING = {"value": 3, "reason": "planted by this test"}
TINY = load_catalog().pairs["tiny"].family


def yes(_: object) -> bool:
    return True


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (planning, plan):
        monkeypatch.setattr(module, "read_facts", lambda: UNREAD)
    return tmp_path / "there"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "newer.yaml"


def written(file: Path, **parts: object) -> str:
    file.write_text(yaml.safe_dump(HEAD | parts))
    return str(file)


def profile(value: object, name: str = "MAX_NUM_SEQS") -> list[object]:
    return [{"name": "h100", "extends": "h100", "settings": {name: {**SETTING, "value": value}}}]


def family(**changed: object) -> dict[str, Any]:
    known: dict[str, Any] = yaml.safe_load(entry_text(TINY))
    return known | changed


def target(**changed: object) -> dict[str, object]:
    first: dict[str, object] = family()["targets"][0]
    return first | changed


def seqs() -> object:
    return load_catalog().profile("h100").settings["MAX_NUM_SEQS"].value


def rows(found: CatalogUpdated) -> set[tuple[str, str, str, str]]:
    return {(row.kind, row.field, row.old, row.new) for row in found.changes}


def test_it_is_shown_field_by_field_used_by_every_command_and_taken_back(file: Path, home: Path) -> None:
    before = seqs()
    place = written(file, profiles=profile(3))
    found = update_catalog(place, agree=lambda found: False)
    assert (found.outcome, seqs(), home.exists()) == ("planned", before, False)
    assert ("profile", "settings.MAX_NUM_SEQS.value", str(before), "3") in rows(found)
    assert found.digest == f"sha256:{sha256(file.read_bytes()).hexdigest()}"
    assert update_catalog(place, agree=yes).outcome == "kept"
    assert seqs() == 3
    (said,) = newer_catalog(DoctorContext(UNREAD))
    assert all(one in said.saw for one in ("newer than the program's", "2026-12-01", place, found.digest))
    assert update_catalog(place, agree=yes).outcome == "current"
    # the second goes back to the first, the first to the catalog of the program
    update_catalog(written(file, profiles=profile(5)), agree=yes)
    assert seqs() == 5
    assert rows(revert_catalog(agree=yes)) == {("profile", "settings.MAX_NUM_SEQS.value", "5", "3")}
    assert seqs() == 3
    assert revert_catalog(agree=yes).digest == ""
    assert (seqs(), list(updates_file().parent.iterdir())) == (before, [])
    with pytest.raises(NotPossible):
        revert_catalog(agree=yes)


def test_a_model_an_engine_and_a_drafter_are_added_and_changed(file: Path) -> None:
    drafter = yaml.safe_load(entry_text(TINY))["drafter"] | {"block_size": 5}
    more = family(targets=[*family()["targets"], target(name="tiny-more")], drafter=drafter)
    release = load_catalog().engines["vllm-0.33"].model_dump(mode="json", exclude_defaults=True)
    engine = release | {"name": "vllm-0.34", "title": "vLLM 0.34", "version": "0.34.0"}
    found = update_catalog(written(file, families=[more], engines=[engine]), agree=yes)
    assert {("engine", "", "", "vLLM 0.34"), ("family", "drafter.block_size", "8", "5")} < rows(found)
    assert [row.field for row in found.changes if row.new == target()["title"]] == ["targets.tiny-more"]
    assert load_catalog().pairs["tiny-more"].drafter.block_size == 5
    assert load_catalog().engines["vllm-0.34"].version == "0.34.0"


def test_a_custom_catalog_extends_the_update(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update_catalog(written(file, profiles=profile(3)), agree=yes)
    (tmp_path / "own" / "profiles").mkdir(parents=True)
    (tmp_path / "own" / "profiles" / "h100.yaml").write_text("{name: h100, extends: h100, title: mine}")
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path / "own"))
    assert (seqs(), load_catalog().profile("h100").title) == (3, "mine")


def test_a_newer_program_ignores_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, place = seqs(), written(file, profiles=profile(3))
    update_catalog(place, agree=yes)
    monkeypatch.setattr("dflash_deploy.catalog.update.__version__", "0.2.0")
    load._load.cache_clear()
    assert seqs() == before
    (said,) = newer_catalog(DoctorContext(UNREAD))
    assert "the program's own, which is newer" in said.saw
    with pytest.raises(NotPossible, match="is newer"):
        update_catalog(place, agree=yes)


def test_a_deployment_keeps_the_model_that_only_the_update_has(file: Path, there: Path) -> None:
    more = family(targets=[*family()["targets"], target(name="tiny-more")])
    update_catalog(written(file, families=[more]), agree=yes)
    init(there, Choice(profile="cpu", runtime="native", model="tiny-more"))
    revert_catalog(agree=yes)
    assert "tiny-more" not in load_catalog().pairs
    assert plan_of(Deployment(there)).pair.name == "tiny-more"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"profiles": profile(True, "TRUST_REMOTE_CODE")}, "trust_remote_code"),
        ({"profiles": profile("--seed 1 --trust-remote-co", "EXTRA_ARGS")}, "trust_remote_code"),
        ({"families": [family(settings={"EXTRA_ARGS": {**SETTING, "value": "--TRUST_REMOTE_CODE"}})]}, "trust_remote"),
        ({"families": [family(targets=[target()])]}, "removes the model tiny-gguf"),
        ({"profiles": [{"name": "h100", "extends": "h100", "recipes": None}]}, "removes the recipe"),
        ({"families": [family(name="other")]}, "moves the model tiny to the family other"),
        ({"families": [family(titel="x")]}, r"unknown key families\.0\.titel"),
        ({"families": [family(drafter={"architecture": "auto_map"})]}, r"families\.0\.drafter"),
        ({"profiles": profile("many")}, "MAX_NUM_SEQS=many"),
        ({"profiles": profile(1, "MAX_NUM_SEKS")}, "MAX_NUM_SEKS, which is not a setting"),
        ({"profiles": [{"name": "h100", "extends": "h1000"}]}, "which is not in the catalog"),
        ({"profiles": ["h100"]}, r"profiles\.0"),
        ({"newer_than": "soon"}, "newer_than"),
        ({"newer_than": "0.0.9"}, "is newer"),
        ({"more": []}, "unknown key more"),
    ],
)
def test_one_that_is_not_valid_changes_nothing(file: Path, home: Path, parts: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=re.compile(says, re.IGNORECASE)) as refusal:
        update_catalog(written(file, **parts), agree=yes)
    assert refusal.value.message.isprintable()
    assert not home.exists()


@pytest.mark.parametrize("kind", ["missing", "directory", "large", "binary"])
def test_what_is_no_such_file_is_refused(file: Path, home: Path, kind: str) -> None:
    match kind:
        case "directory":
            file.mkdir()
        case "large":
            file.write_bytes(b"#" * (2**20 + 1))
        case "binary":
            file.write_bytes(b"\x7fELF\xff")
    with pytest.raises(FileRefused):
        update_catalog(str(file), agree=yes)
    assert not home.exists()


def test_a_url_needs_its_digest(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    text, url = EXAMPLE.read_text(), "https://example.org/catalog.yaml?token=secret"
    monkeypatch.setattr(described, "fetch_text", lambda url, **_: text)
    for wrong in (url, f"{url}#sha256={'0' * 64}"):
        with pytest.raises(CatalogRefused, match="digest"):
            update_catalog(wrong, agree=yes)
    assert not home.exists()
    done = update_catalog(f"{url}#sha256={sha256(text.encode()).hexdigest()}", agree=yes)
    assert (done.outcome, done.place) == ("kept", "https://example.org/catalog.yaml")


@pytest.mark.parametrize("kind", ["text", "digest", "entry", "directory", "link"])
def test_a_damaged_one_is_named_and_can_be_reverted_or_replaced(file: Path, there: Path, kind: str) -> None:
    init(there, Choice(profile="cpu", runtime="native"))
    place = written(file, profiles=profile(3))
    update_catalog(place, agree=yes)
    kept = updates_file()
    match kind:
        case "text":
            kept.write_text(kept.read_text()[:-9])
        case "digest":
            kept.write_text(kept.read_text().replace("h100", "h200"))
        case "entry":
            (entry,) = json.loads(kept.read_text())
            text = entry["text"].replace("MAX_NUM_SEQS", "MAX_NUM_SEKS")
            kept.write_text(json.dumps([entry | {"text": text, "sha256": sha256(text.encode()).hexdigest()}]))
        case _:
            kept.unlink()
            kept.mkdir() if kind == "directory" else kept.symlink_to(EXAMPLE)
    ran = invoke("models", "show", "tiny")
    assert (ran.code, len(ran.err.splitlines())) == (ExitCode.USAGE, 2), ran.err
    assert "models update --revert" in ran.err
    # a running engine can still be stopped
    assert plan_to_stop(Deployment(there)).runtime == "native"
    revert_catalog(agree=yes)
    assert invoke("models", "show", "tiny").code is ExitCode.DONE
    assert not os.path.lexists(kept)
    assert update_catalog(place, agree=yes).outcome == "kept"


def test_a_full_disk_keeps_the_catalog_in_use(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    update_catalog(written(file, profiles=profile(3)), agree=yes)
    monkeypatch.setattr(update, "write_atomically", full)
    with pytest.raises(PreflightRefused, match="No space left"):
        update_catalog(written(file, profiles=profile(5)), agree=yes)
    assert seqs() == 3


def test_without_a_terminal_it_needs_yes_and_a_dry_run_shows_the_digest() -> None:
    assert invoke("models", "update", str(EXAMPLE)).code is ExitCode.USAGE
    assert invoke("models", "update").code is ExitCode.USAGE
    shown = invoke("models", "update", str(EXAMPLE), "--dry-run")
    assert f"sha256:{sha256(EXAMPLE.read_bytes()).hexdigest()}" in shown.succeeded().out
    assert "profile cpu: settings.MAX_MODEL_LEN.value: 2048 -> 1024" in shown.out
    found = invoke("models", "update", str(EXAMPLE), "--dry-run", "--json").document["data"]
    assert (found["outcome"], found["changes"][0]["name"]) == ("planned", "cpu")
    assert invoke("models", "update", str(EXAMPLE), "--yes").succeeded().out == "catalog  of 2026-12-01 is in use now\n"
