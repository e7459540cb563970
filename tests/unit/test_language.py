"""The program's texts use plain words and the field's terms: tools/language.py lists what is not written."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tools import language

# Terms of the field that the texts use and that a reader must be able to look up.
FIELD_TERMS = {
    "acceptance length",
    "acceptance rate by position",
    "concurrency",
    "decode",
    "deployment",
    "draft model",
    "draft tokens",
    "drafter",
    "engine",
    "family",
    "itl",
    "kv cache",
    "lock",
    "max_num_batched_tokens",
    "max_num_seqs",
    "model pair",
    "mtp head",
    "prefill",
    "profile",
    "quantization",
    "recurrent (ssm) state",
    "runtime",
    "target",
    "tokens per step",
    "tpot",
    "ttft",
}


def test_no_text_uses_a_word_that_has_a_plain_replacement() -> None:
    found = [str(one) for file in language.texts() for one in language.found_in(file)]
    assert not found, "\n".join(["write these in other words (`python -m tools.language` lists all):", *found])


def test_every_quotation_that_is_allowed_is_still_there() -> None:
    texts = {str(file.relative_to(language.ROOT)): file for file in language.texts()}
    missing = [
        quote
        for quote in language.QUOTED
        if quote.path not in texts
        or not any(quote.text in passage.text for passage in language.passages(texts[quote.path]))
    ]
    assert not missing
    assert all(len(quote.reason) > 20 for quote in language.QUOTED)


def test_the_glossary_is_sorted_and_defines_each_term_once() -> None:
    text = (language.ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\*\*(.+?)\.\*\* ", text, re.MULTILINE)
    assert terms == sorted(set(terms), key=str.lower)
    assert {term.lower() for term in terms} >= FIELD_TERMS


def test_every_kind_of_text_is_read() -> None:
    suffixes = Counter(file.suffix for file in language.texts())
    assert set(suffixes) >= {".py", ".yaml", ".md", ".env"}
    assert suffixes[".py"] > 100
    folders = {file.relative_to(language.ROOT).parts[0] for file in language.texts() if file.suffix == ".py"}
    assert folders >= {"benchmarks", "dflash_deploy", "models", "tools"}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", '"""Fine.\n\nIt starts anew.\n"""\n', 3),
        ("a.py", "x = 1\n# a comment that\n# is held\n# against it\n", 3),
        ("a.py", "x = (\n    f'{1} is told '\n    'what follows'\n)\n", 2),
        ("a.yaml", "a: 1\nb: is told of it\n", 2),
        ("a.yaml", "a: 1 # anew\n", 1),
        ("a.md", "# Title\n\nIt starts\nanew.\n", 4),
        ("a.env", "# anew\nA=\n", 1),
    ],
)
def test_a_word_is_found_with_its_line(
    name: str, text: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = list(language.found_in(tmp_path / name))
    assert [(one.path, one.line) for one in found] == [(name, line)]
    assert found[0].instead in str(found[0])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "told = {'slots': 'anew'}\n"),
        ("a.md", "`--dflash-max-slots` limits it.\n"),
        ("a.yaml", "pattern: 'the slots are told anew'\n"),
        ("a.yaml", "abilities: [clamps-draft-slots]\n"),
        ("a.md", "There is no longer a limit, and it is no slower.\n"),
    ],
)
def test_names_and_facts_are_left_alone(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(language.found_in(tmp_path / name)) == []


STYLE = [
    "A plan is held against 55 rules",
    "the header of a GGUF counts more than the catalog where it lies on disk",
    "Settings of the shell do not count",
    "is skipped aloud",
    "An answer that is waited for in vain ends the run",
    "was killed for want of memory",
    "no draft was made: what runs decodes plainly",
    "that is no address of an endpoint",
    "settings that do not end with an answer give way to those that did last",
    "whoever starts it",
    "nobody has told",
    "it stands in the file",
    "the target's own head",
    "eight streams, in small pieces",
    "a catalog of one's own",
    "the container engine does not answer",
]


@pytest.mark.parametrize("sentence", STYLE)
def test_what_the_style_guide_rewrites_is_found(sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text(sentence, encoding="utf-8")
    assert list(language.found_in(tmp_path / "a.md"))


@pytest.mark.parametrize(
    "sentence",
    [
        "Every plan is checked against 56 rules",
        "Weights on disk override the catalog",
        "Shell variables are ignored",
        "is reported as skipped, with the reason",
        "A timeout (3 min) stops the run",
        "was killed: out of memory (OOM)",
        "the engine reported no draft tokens: speculative decoding is off",
        "not a valid URL: expected http://HOST:PORT, without credentials",
        "Docker does not respond",
        "The answer streams in chunks at concurrency 8",
    ],
)
def test_what_the_style_guide_writes_instead_is_fine(
    sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text(sentence, encoding="utf-8")
    assert not list(language.found_in(tmp_path / "a.md"))
