"""Writes the manual page into the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPage(BuildHookInterface):
    """`man dflash-deploy` finds the page in an active environment, and pipx links it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the page before the files of the wheel are collected."""
        sys.path.insert(0, self.root)
        from tools.reference import manual  # noqa: PLC0415 - from the sources that are built

        file = Path(self.root, "build", "dflash-deploy.1")
        file.parent.mkdir(exist_ok=True)
        file.write_text(manual.page(), encoding="utf-8")
        build_data["shared_data"][str(file)] = "share/man/man1/dflash-deploy.1"
