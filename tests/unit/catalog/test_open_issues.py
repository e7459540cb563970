"""The open issues that a release has to read again."""

from pathlib import Path

from tools.open_issues import open_issues


def test_an_issue_that_is_called_open_is_listed_with_its_places(tmp_path: Path) -> None:
    catalog = tmp_path / "dflash_deploy"
    catalog.mkdir()
    (catalog / "a.yaml").write_text("by: read\nsource: 'o/r.cpp#12, open; o/r#3'\nother: o/r#4, closed\n")
    assert open_issues(tmp_path) == {"https://github.com/o/r.cpp/issues/12": ["dflash_deploy/a.yaml:2"]}


def test_the_catalog_has_such_issues() -> None:
    assert "https://github.com/vllm-project/vllm/issues/47930" in open_issues()
