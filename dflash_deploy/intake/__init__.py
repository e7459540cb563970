"""Reads what the program did not write a moment ago: files and texts from outside, bounded in time and memory.

`files` opens and reads, `json_text` and `yaml_text` parse, `documents` and `export_documents` describe the program's
own JSON files, `state` reads those of `.dflash/` and sets damaged ones aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.intake.files import MIB, open_file, read_argument, read_bytes, read_text
    from dflash_deploy.intake.invalid import Invalid
    from dflash_deploy.intake.json_text import parse_json, parse_object
    from dflash_deploy.intake.yaml_text import parse_packaged_yaml, parse_yaml
else:
    __getattr__ = lazily(
        __name__,
        {
            ".files": ("MIB", "open_file", "read_argument", "read_bytes", "read_text"),
            ".invalid": ("Invalid",),
            ".json_text": ("parse_json", "parse_object"),
            ".yaml_text": ("parse_packaged_yaml", "parse_yaml"),
        },
    )

__all__ = [
    "MIB",
    "Invalid",
    "open_file",
    "parse_json",
    "parse_object",
    "parse_packaged_yaml",
    "parse_yaml",
    "read_argument",
    "read_bytes",
    "read_text",
]
