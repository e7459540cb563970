"""`make check`: run the tests that import a module which the working tree changes, directly or through others.

A test that runs a command imports the module of that command too: `dflash("up", …)` is an import of the command `up`.
An `__init__` with names that are loaded when first used counts as an import of all of them, so too many tests may run
and never too few. Unit tests run whole before this. Tests that need Docker, vLLM or several hosts are named, not run.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

from dflash_deploy.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[1]

# Tiers that need no engine but llama.cpp's server, and no Docker.
RUN = ("tests.cli", "tests.job", "tests.hub", "tests.processes")

# Functions of the tests that run a command whose name is their first argument.
STARTERS = {"dflash", "invoke", "on_terminal", "initialise"}


def changed_modules() -> set[str]:
    """The modules whose files differ from the last commit, untracked ones included."""
    told = ["git", "status", "--porcelain", "--no-renames", "--untracked-files=all"]
    lines = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {module_of(Path(line[3:])) for line in lines if line.endswith(".py")}


def module_of(file: Path) -> str:
    """The dotted name of a file of this repository."""
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def commands_of(file: Path) -> Iterator[str]:
    """The modules of the commands that a test runs by name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in STARTERS:
            words = [str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)]
            words += ["init"] if getattr(node.func, "id", "") == "initialise" else []
            yield from (f"dflash_deploy.cli.{COMMANDS[word][0]}" for word in words if word in COMMANDS)


def affected(changed: set[str]) -> list[str]:
    """The test modules that import a changed module, or are changed."""
    graph = grimp.build_graph("dflash_deploy", "tests", "tools", include_external_packages=False)
    tests = [name for name in graph.modules if name.rpartition(".")[2].startswith("test_")]
    for name in tests:
        for command in commands_of(ROOT / f"{name.replace('.', '/')}.py"):
            graph.add_import(importer=name, imported=command)
    known = changed & graph.modules
    reached = known.union(*(graph.find_downstream_modules(one) for one in known))
    return sorted(reached.intersection(tests))


def main() -> int:
    """Run them, and say which were left out."""
    found = affected(changed_modules())
    here = [name for name in found if name.startswith(RUN)]
    elsewhere = [name for name in found if not name.startswith((*RUN, "tests.unit"))]
    if elsewhere:
        print(f"not run, though they import what you changed: {', '.join(elsewhere)} (`make test-all` runs them)")
    if not here:
        print("no further test imports what you changed")
        return 0
    files = [f"{name.replace('.', '/')}.py" for name in here]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses=logical", "--dist=loadscope", *files], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
