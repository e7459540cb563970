"""The statement of provenance names each file of a release by its digest, and the commit that it was built from."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tools.provenance import statement

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FINISHED = datetime(2026, 11, 22, 15, 0, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("one.whl", "one.tar.gz", "sbom.cdx.json")]
    for file in made:
        file.write_text(file.name)
    return made


def test_it_names_every_file_by_its_digest(files: list[Path]) -> None:
    said = json.loads(statement(files, COMMIT, FINISHED, clean=True))
    digests = {one["name"]: one["digest"] for one in said["subject"]}
    assert digests == {file.name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()} for file in files}
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"


def test_it_names_the_commit_and_whether_files_were_changed(files: list[Path]) -> None:
    for clean in (True, False):
        said = json.loads(statement(files, COMMIT, FINISHED, clean=clean))["predicate"]
        assert said["buildDefinition"]["externalParameters"]["unchanged"] is clean
        assert said["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": COMMIT}
        assert said["runDetails"]["metadata"] == {"finishedOn": "2026-11-22T15:00:00Z"}


def test_a_statement_about_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="subject"):
        statement([], COMMIT, FINISHED, clean=True)
