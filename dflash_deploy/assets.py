"""Where the files lie that are not Python: Compose fragments, `.env` templates, images, the tiny pair.

In a checkout they stand beside the package, where a person can run them by hand; an installed wheel carries them.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PACKAGE = Path(__file__).resolve().parent


def asset(*parts: str) -> Path:
    """The path of one asset, such as `asset("compose", "base.yaml")`.

    Raises FileNotFoundError where neither the wheel nor the checkout has it: a broken installation.
    """
    for root in (PACKAGE / "_assets", PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"dflash-deploy is installed without {'/'.join(parts)}")


_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, which PyYAML's wheels have: with the other one half a second of every command is YAML."""


def read_yaml(text: str) -> Any:
    """What a YAML text says. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both are safe loaders


def build_context(engine: str) -> dict[str, Path]:
    """The files that an engine's image is built from: their place in the build context, and where they are."""
    image = asset("images", engine)
    beside = sorted(path for path in image.rglob("*") if path.is_file())
    sources = sorted((PACKAGE / "serve").rglob("*.py"))
    return {f"images/{engine}/{path.relative_to(image)}": path for path in beside} | {
        str(source.relative_to(PACKAGE.parent)): source for source in sources
    }


@cache
def build_digest(engine: str) -> str:
    """Eight hexadecimal digits that change with any file of the build context, so that no image is a stale one."""
    digest = hashlib.sha256()
    for name, path in build_context(engine).items():
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]
