"""Where the files lie that are not Python: Compose fragments, `.env` templates, images, the tiny pair.

In a checkout they stand beside the package, where a person can run them by hand; an installed wheel carries them.
"""

from __future__ import annotations

from pathlib import Path

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
