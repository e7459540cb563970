"""A catalog of one's own: the annotated examples are its manual, and what is wrong is said by file and key."""

import os
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from dflash_deploy.catalog.failures import Failures
from dflash_deploy.catalog.hardware import GpuModels, Profile
from dflash_deploy.catalog.load import _load, load_catalog
from dflash_deploy.catalog.models import Family
from dflash_deploy.catalog.read import models_in, read_entry
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.errors import CatalogRefused

EXAMPLES = Path(__file__).parents[3] / "docs" / "reference" / "catalog"
KINDS: list[tuple[str, type[BaseModel]]] = [
    ("profiles/l40s.yaml", Profile),
    ("families/example.yaml", Family),
    ("engines/example.yaml", EngineRelease),
    ("failures.yaml", Failures),
    ("gpus.yaml", GpuModels),
]


def keys(kind: type[BaseModel]) -> set[str]:
    """All keys of a kind of entry, those within it included."""
    found = set(kind.model_fields)
    for field in kind.model_fields.values():
        for inner in models_in(field.annotation):
            found |= keys(inner)
    return found


@pytest.mark.parametrize(("file", "kind"), KINDS)
def test_the_example_is_valid_and_has_every_key_there_is(file: str, kind: type[BaseModel]) -> None:
    read_entry(EXAMPLES / file, kind)
    text = (EXAMPLES / file).read_text()
    written = set(re.findall(r"(\w+):(?: |$)", text, re.MULTILINE)) | set(re.findall(r"`(\w+)`", text))
    assert keys(kind) - written == set()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "profiles").mkdir()
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path))
    return tmp_path / "profiles" / "l40s.yaml"


def test_a_profile_of_ones_own_is_one_more(own: Path) -> None:
    own.write_text((EXAMPLES / "profiles/l40s.yaml").read_text())
    assert load_catalog().profile("l40s").title.endswith("L40S (48 GB)")
    assert "h100" in load_catalog().profiles


def test_a_profile_that_extends_another_has_only_what_differs(own: Path) -> None:
    own.write_text(
        "{name: mine, extends: h100, title: mine, recipes: null, match: {names: [MINE]}, engines: [{release: "
        "sglang-0.5.23, settings: {ATTENTION_BACKEND: {value: triton}, MAX_NUM_BATCHED_TOKENS: null}}], "
        "settings: {MAX_NUM_SEQS: {value: 2}}}"
    )
    base, mine = load_catalog().profile("h100"), load_catalog().profile("mine")
    assert (mine.title, mine.hardware, mine.recipes) == ("mine", base.hardware, [])
    assert (mine.match.names, mine.match.memory_gib) == (["MINE"], base.match.memory_gib)
    before, after = base.settings_for("sglang-0.5.23"), mine.settings_for("sglang-0.5.23")
    assert [choice.release for choice in mine.engines] == ["sglang-0.5.23"]
    assert before.keys() - after.keys() == {"MAX_NUM_BATCHED_TOKENS"}
    assert {name for name in after if after[name] != before[name]} == {"ATTENTION_BACKEND", "MAX_NUM_SEQS"}
    assert after["MAX_NUM_SEQS"].reason == before["MAX_NUM_SEQS"].reason


def test_a_profile_that_extends_its_own_name_changes_the_packaged_one(own: Path) -> None:
    title = load_catalog().profile("h100-x2").title
    own.write_text("{name: h100, extends: h100, settings: {MAX_NUM_SEQS: {value: 3}}}")
    _load.cache_clear()
    assert load_catalog().profile("h100").settings["MAX_NUM_SEQS"].value == 3
    assert load_catalog().profile("h100-x2").title == title


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{name: a, extends: h1000}", r"l40s\.yaml extends h1000, which is not in the catalog \(h100\?\)"),
        ("{name: a, extends: [h100]}", "which is not in the catalog"),
        ("{name: a, extends: a}", "extends a, which is not in the catalog"),
        ("{name: a, extends: b}", "extends a, which extends it"),
        ("{name: a, extends: h100, hardware: {memory_gib: -1}}", r"hardware\.memory_gib: Input should be greater"),
        ("{name: a, extends: h100, engines: [1]}", r"engines\.0: "),
    ],
)
def test_a_profile_that_extends_nothing_or_itself_is_refused(own: Path, text: str, says: str) -> None:
    own.write_text(text)
    own.with_name("other.yaml").write_text("{name: b, extends: a}")
    with pytest.raises(CatalogRefused, match=says) as refusal:
        load_catalog()
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize(
    ("old", "new", "says", "hint"),
    [
        ("title:", "titel:", "unknown key titel", "did you mean title?"),
        ("  bandwidth:", "  bandwith:", "unknown key hardware.bandwith", "did you mean bandwidth?"),
        ("      MAX_NUM_SEQS:\n        value:", "      MAX_NUM_SEQS:\n        vaule:", "vaule", "did you mean value?"),
        ("memory_gib: 45 ", "memory_gib: much ", "hardware.memory_gib", "annotated example"),
        ("    pair: qwen3.5-27b-gguf", "    pair: qwen9", "qwen9", "name exactly as"),
        ('speed: ""', 'speed: "40; a card"', "has a speed of no pair, which is not in", "name exactly as"),
        ('speed: ""\nspeed_of: ""', "speed: a\nspeed_of: tine", "speed of tine, which is not in", "name exactly as"),
        ("match:", "match: [", "is not valid YAML", "annotated example"),
    ],
)
def test_what_is_wrong_is_said_by_file_and_key(own: Path, old: str, new: str, says: str, hint: str) -> None:
    text = (EXAMPLES / "profiles/l40s.yaml").read_text()
    assert old in text
    own.write_text(text.replace(old, new, 1))
    with pytest.raises(CatalogRefused) as refusal:
        load_catalog()
    assert says in refusal.value.message
    assert hint in refusal.value.hint


def test_ones_own_fingerprints_are_asked_first_and_replace_their_namesakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path))
    text = (EXAMPLES / "failures.yaml").read_text()
    (tmp_path / "failures.yaml").write_text(text.replace("killed-at-the-limit", "killed"))
    failures = load_catalog().failures
    assert [failure.id for failure in failures[:2]] == ["cache-too-small", "killed"]
    assert [failure.out_of_memory for failure in failures if failure.id == "killed"] == [True]


def test_a_slip_in_a_fingerprint_is_said_by_file_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path))
    (tmp_path / "failures.yaml").write_text((EXAMPLES / "failures.yaml").read_text().replace("pattern:", "patern:", 1))
    with pytest.raises(CatalogRefused, match=r"failures\.yaml: unknown key failures\.0\.patern") as refusal:
        load_catalog()
    assert "did you mean pattern?" in refusal.value.hint


def test_a_directory_that_is_no_catalog_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path / "nowhere"))
    with pytest.raises(CatalogRefused, match="contains no catalog"):
        load_catalog()


DEEP = "[" * 100_000
LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))])
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10))]
)
FINGERPRINT = "failures: [{{id: a, pattern: '{}', cause: because of that, do: something else, source: here}}]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DEEP, "nested deeper than 50 levels"),
        ("title: " + DEEP, "nested deeper than 50 levels"),
        (LAUGHS, "more than 100000 values"),
        (MERGES, "more than 100000 values"),
        ("name: " + "9" * 5000, "does not fit into 64 bits"),
        ("? [a, b]\n: c", "is not valid YAML"),
        ("name: !!python/object/apply:os.system [id]", "has a tag"),
        ("name: 2026-11-22\ntitle: 2026-11-22", "Field required"),
        ('"\\e[31mred": 1', "unknown key \ufffd[31mred"),
        ("x" * 500 + ": 1", "unknown key xxx"),
        ("1: 2\n3: 4", "name: Field required"),
        ("~", "valid dictionary"),
        ("- a", "valid dictionary"),
        ("root:x:0:0:root:/root:/bin/bash", "valid dictionary"),
        ("#" * 2**21, "too large: 2097152 bytes (limit: 1048576)"),
        ("a: \udcff", "is not UTF-8 text"),
        ("a: \x00", "is not valid YAML"),
    ],
)
def test_a_hostile_file_is_refused_in_one_short_line(own: Path, text: str, says: str) -> None:
    own.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CatalogRefused) as refusal:
        load_catalog()
    assert says in refusal.value.message
    assert refusal.value.message.isprintable()
    assert len(refusal.value.message) < 600
    assert "/bin/bash" not in refusal.value.message


@pytest.mark.parametrize("kind", ["FIFO", "device", "loop", "directory"])
def test_what_is_no_file_is_refused_at_once(own: Path, kind: str) -> None:
    match kind:
        case "FIFO":
            os.mkfifo(own)
        case "device":
            own.symlink_to("/dev/zero")
        case "loop":
            own.symlink_to(own)
        case _:
            own.mkdir()
    with pytest.raises(CatalogRefused, match=r"l40s\.yaml"):
        load_catalog()


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a{0,99999999999}", "not a valid regular expression"),
        ("(" * 1000 + ")" * 1000, "too long: 2000 characters"),
        ("(" * 150 + ")" * 150, ""),
        ("a*a*a*b", "too slow"),
        (r"\w+\w+\w+:", "too slow"),
        ("(a|a)*b", "too slow"),
        ("[", "not a valid regular expression"),
    ],
)
def test_a_pattern_that_is_invalid_or_slow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, says: str
) -> None:
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path))
    (tmp_path / "failures.yaml").write_text(FINGERPRINT.format(pattern))
    with pytest.raises(CatalogRefused) as refusal:
        load_catalog()
    assert says in refusal.value.message


@pytest.mark.parametrize("own", ["/x\0y", "x" * 5000])
def test_a_path_that_no_catalog_can_have_is_refused(own: str) -> None:
    with pytest.raises(CatalogRefused):
        _load(own)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    source:", "    # source:", "gpus.0.source: Field required"),
        (
            "like: rtx-4090",
            "like: rtx-9090",
            "GPU rtx-4500-ada names the profile rtx-9090, which is not in the catalog",
        ),
        ("bandwidth: 432", "bandwidth: fast", "gpus.0.bandwidth: Input should be a valid number"),
    ],
)
def test_a_gpu_without_source_or_with_unknown_figures_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    monkeypatch.setenv("DFLASH_CATALOG", str(tmp_path))
    text = (EXAMPLES / "gpus.yaml").read_text()
    assert old in text
    (tmp_path / "gpus.yaml").write_text(text)
    _load.cache_clear()
    assert load_catalog().profile("rtx-4500-ada-x2").evidence.state == "computed"
    (tmp_path / "gpus.yaml").write_text(text.replace(old, new, 1))
    _load.cache_clear()
    with pytest.raises(CatalogRefused) as refusal:
        load_catalog()
    assert says in refusal.value.message
    assert "\n" not in refusal.value.message + refusal.value.hint
