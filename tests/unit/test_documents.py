"""Links of the documents lead somewhere, and every command that they show is one."""

import re
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.documents import ROOT, Shown
from tools import language
from tools.reference import FOLDER, manual
from tools.reference.commands import shown
from tools.reference.pages import BUILT, CHECKED_IN

DOCUMENTS = documents.documents()


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    links = [link for file in DOCUMENTS for link in documents.links(file)]
    broken = [f"{link}: {problem}" for link in links if (problem := documents.problem_of(link))]
    assert not broken, "\n".join(broken)


def test_every_command_is_accepted_by_the_command_line() -> None:
    shown = [one for file in DOCUMENTS for one in documents.commands(file)]
    refused = [f"{one}: {problem}" for one in shown if (problem := _refused(one))]
    assert not refused, "\n".join(refused)


def test_every_command_in_a_message_or_comment_is_accepted_by_the_command_line() -> None:
    shown = [one for file in language.texts() for one in documents.mentions(file)]
    refused = [f"{one}: {problem}" for one in shown if (problem := _refused(one))]
    assert not refused, "\n".join(refused)
    assert {one.file.suffix for one in shown} >= {".py", ".yaml", ".env"}


def _refused(shown: Shown) -> str:
    try:
        documents.parse(shown.words)
    except Exception as problem:
        name = type(problem).__name__
        return "" if shown.mentioned and name == "MissingParameter" else f"{name}: {problem}"
    return ""


def test_documents_show_commands() -> None:
    shown = [one for file in DOCUMENTS for one in documents.commands(file)]
    assert {one.words[0] for one in shown} >= {"init", "plan", "up", "test", "bench", "tune", "pull", "rollback"}
    assert len(shown) > 150


@pytest.mark.parametrize(
    "words",
    [
        ("serve",),
        ("up", "--banana"),
        ("keys", "turn"),
        ("init", "--port", "http"),
        ("models", "show"),
        ("init", "--goal", "speed"),
    ],
)
def test_a_command_that_does_not_exist_is_found(words: tuple[str, ...]) -> None:
    assert _refused(Shown(ROOT / "README.md", 1, words))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("    dflash-deploy up --fix   # comment\n", [("up", "--fix")]),
        ("    dflash-deploy init --profile cpu && dflash-deploy up\n", [("init", "--profile", "cpu"), ("up",)]),
        ("```console\n$ dflash-deploy plan \\\n    --concurrency 2\ndflash-deploy is the output\n```\n",
         [("plan", "--concurrency", "2")]),
        ("Run `dflash-deploy keys show` and `up`.\n", [("keys", "show")]),
        ('    export KEY="$(dflash-deploy keys show --reveal)"\n', [("keys", "show", "--reveal")]),
        ("    next     dflash-deploy plan   why\n              dflash-deploy up     start it\n", []),
    ],
)  # fmt: skip
def test_commands_are_found_in_blocks_and_spans(text: str, words: list[tuple[str, ...]], tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(text, encoding="utf-8")
    assert [shown.words for shown in documents.commands(file)] == words


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](other.md)", False),
        ("[a](other.md#a-heading-with-code)", False),
        ("[a](other.md#another)", True),
        ("[a](other.md#a-row)", False),
        ("[a](missing.md)", True),
        ("![a](missing.png)", True),
        ("[a](https://example.com/missing.md)", False),
        ("| a |\n|---|\n| [a](missing.md) |\n", True),
    ],
)
def test_a_broken_link_is_found(text: str, broken: bool, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        '# A heading, with `code`\n\n- <a id="a-row">`a-row`</a>: its cause\n', encoding="utf-8"
    )
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert [bool(documents.problem_of(link)) for link in documents.links(page)] == [broken]


def test_pages_that_the_program_names_exist() -> None:
    named = {
        (file, path)
        for file in language.texts()
        for path in language.PAGE.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / path).exists() and ROOT / path not in documents.ON_THE_SITE
    }
    assert not named


def test_every_picture_has_an_alternative_text() -> None:
    pictures = [(str(file), picture) for file in DOCUMENTS for picture in documents.pictures(file)]
    assert pictures
    assert [one for one in pictures if len(one[1].text.split()) < 4] == []


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    """The site's build fails without this too; here it is seen in a second."""
    named = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    folder = ROOT / "docs"
    pages = [file for file in DOCUMENTS if file.is_relative_to(folder)]
    assert sorted(named) == sorted(str(file.relative_to(folder)) for file in pages)


def test_the_documents_do_not_grow() -> None:
    """What is added makes something else shorter."""
    assert sum(len(file.read_text(encoding="utf-8").split()) for file in documents.checked_in()) <= 50_000


def test_sentences_are_short() -> None:
    generated = {FOLDER / name for name in CHECKED_IN}
    written = [file for file in documents.checked_in() if file.is_relative_to(ROOT / "docs") and file not in generated]
    found = [sentence for file in written for sentence in documents.long_sentences(file)]
    assert not found, "\n".join(found)


def test_a_long_sentence_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"Short. {'word ' * 25}end. Short `a b c`.\n\n| {'cell ' * 40}|\n|---|\n", encoding="utf-8")
    assert [one.split(": ")[:2] for one in documents.long_sentences(page)] == [["page.md:1", "26 words"]]


@pytest.mark.parametrize("name", [name for name in CHECKED_IN if name != "faults.md"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == CHECKED_IN[name](), "run: make generate"


@pytest.mark.parametrize("name", [name for name in BUILT if name.endswith(".md")])
def test_a_page_of_the_site_has_a_title_and_its_source(name: str) -> None:
    text = documents.text_of(FOLDER / name)
    assert text.startswith("# ")
    assert "\nby `make docs`.\n" in text
    assert "{{" not in re.sub("`[^`]*`", "", text)


def test_no_generated_page_of_the_site_is_in_the_repository() -> None:
    """The site would have two of it."""
    assert [name for name in BUILT if (FOLDER / name).exists()] == []


def test_the_manual_page_has_every_command_and_only_requests_of_its_macros() -> None:
    text = manual.page()
    assert [name for name, _ in shown() if f'.SS "{name}"'.replace("-", "\\-") not in text] == []
    # a request at the beginning of a line that is none of the page's macros would be swallowed
    requests = set(re.findall(r"^\.(\w+)", text, re.MULTILINE))
    assert requests == {"TH", "SH", "SS", "B", "BR", "I", "RI", "PP", "TP", "nf", "fi"}
