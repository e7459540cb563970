"""What holds the house together and no linter checks: one meaning for each name, no engine told apart by its name."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import dflash_deploy
from dflash_deploy.serve.engines import ENGINES
from tests.support.trees import nodes_of, tree_of

PACKAGE = Path(dflash_deploy.__file__).parent
MODULES = {str(path.relative_to(PACKAGE)): path.resolve() for path in sorted(PACKAGE.rglob("*.py"))}

# Modules that may write an engine's name as text, and why.
NOT_AN_ENGINE = {
    "operations/bundle.py": "names of distributions whose versions go into the bundle",
    "serve/field.py": "names of the templates in env-templates/",
    "serve/cpu_site/sitecustomize.py": "the distribution that vLLM's CPU build is asked for",
}


def public_classes() -> Iterator[tuple[str, str]]:
    for module, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for name, module in public_classes():
        places[name].append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_no_code_outside_the_engines_modules_tells_them_apart_by_name() -> None:
    found = [
        f"{module}:{node.lineno} {node.value}"
        for module, path in MODULES.items()
        if not module.startswith("serve/engines/") and module not in NOT_AN_ENGINE
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ENGINES
    ]
    assert not found
    assert set(NOT_AN_ENGINE) <= set(MODULES)


def test_each_engine_has_its_data() -> None:
    for engine in ENGINES.values():
        assert engine.title
        assert engine.program
