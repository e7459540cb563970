"""Paths of the files that are not Python: Compose fragments, `.env` templates, images, the tiny models.

In a checkout they are next to the package, so that you can run them by hand. An installed wheel contains them.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def asset(*parts: str) -> Path:
    """The path of one asset, such as `asset("compose", "base.yaml")`.

    Raises FileNotFoundError if neither the wheel nor the checkout has it: a broken installation.
    """
    for root in (PACKAGE / "_assets", PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"dflash-deploy is installed without {'/'.join(parts)}")


def asset_text(*parts: str) -> str:
    """The text of one asset. Raises FileNotFoundError: a broken installation."""
    return asset(*parts).read_text(encoding="utf-8")


def build_context(image: str) -> dict[str, Path]:
    """The files that an image is built from, by its folder in images/: their path in the build context, and on disk."""
    folder = asset("images", image)
    beside = sorted(path for path in folder.rglob("*") if path.is_file())
    sources = sorted((PACKAGE / "serve").rglob("*.py"))
    return {f"images/{image}/{path.relative_to(folder)}": path for path in beside} | {
        str(source.relative_to(PACKAGE.parent)): source for source in sources
    }


@cache
def build_digest(image: str) -> str:
    """Eight hexadecimal digits that change with any file of the build context, so that no stale image is used."""
    digest = hashlib.sha256()
    for name, path in build_context(image).items():
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]
