"""The provenance of a release as an in-toto statement: `python -m tools.provenance dist`.

The statement is not signed: a signature needs a person's or a service's identity (CONTRIBUTING.md, release checklist).
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson, ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement

ROOT = Path(__file__).resolve().parents[1]

REPOSITORY = "https://github.com/dflash-deploy/dflash-deploy"
PREDICATE = "https://slsa.dev/provenance/v1"
NAME = "provenance.intoto.json"
PATTERNS = ("*.whl", "*.tar.gz", "sbom.cdx.json")  # the files of a release that the statement is about

# What made them; hatchling runs in an environment that `build` makes, so its version may be unknown here.
TOOLS = ("build", "hatchling", "cyclonedx-bom")


def statement(files: Iterable[Path], commit: str, finished: datetime, *, clean: bool) -> str:
    """Return the statement as JSON: the digest of each file, and the commit that it was built from."""
    subjects = [ResourceDescriptor(name=file.name, digest={"sha256": _sha256(file)}).pb for file in sorted(files)]
    made = Statement(subjects, PREDICATE, _predicate(commit, finished, clean=clean))
    made.validate()
    text: str = MessageToJson(made.pb)
    return text + "\n"


def _predicate(commit: str, finished: datetime, *, clean: bool) -> dict[str, Any]:
    source = {"uri": f"git+{REPOSITORY}", "digest": {"gitCommit": commit}}
    predicate: dict[str, Any] = {
        "buildDefinition": {
            "buildType": f"{REPOSITORY}/blob/main/Makefile#dist",
            "externalParameters": {"source": source, "command": "make dist", "unchanged": clean},
            "resolvedDependencies": [source, *({"uri": f"pkg:pypi/{name}@{at}"} for name, at in _tools().items())],
        },
        "runDetails": {
            "builder": {"id": f"{REPOSITORY}/blob/main/CONTRIBUTING.md#release-checklist"},
            "metadata": {"finishedOn": finished.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
        },
    }
    # refuses a field that SLSA does not define
    ParseDict(predicate, Provenance())
    return predicate


def _tools() -> Mapping[str, str]:
    known = {one.name.lower(): one.version for one in metadata.distributions()}
    return {name: known[name] for name in TOOLS if name in known}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main(folder: Path) -> None:
    """Write the statement about the files of a release beside them."""
    files = [file for pattern in PATTERNS for file in folder.glob(pattern)]
    clean = not _git("status", "--porcelain")
    text = statement(files, _git("rev-parse", "HEAD"), datetime.now(UTC), clean=clean)
    (folder / NAME).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
