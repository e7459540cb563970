"""Files and answers from outside come in through `intake`, where every one of them has a limit."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import dflash_deploy
from tests.support.trees import tree_of

PACKAGE = Path(dflash_deploy.__file__).parent

# Methods and functions that read a file, or parse JSON without the limits of `intake`.
READS = frozenset({"read_text", "read_bytes", "model_validate_json", "validate_json", "from_json"})

# `serve` runs in the image and imports nothing of the package; it reads what the package wrote for it.
OWN_ROOMS = ("intake", "serve")

_OF_THE_KERNEL = "a file of /proc or /sys, which the kernel writes and bounds"
_OF_THE_PACKAGE = "a file of this package, which the installation wrote"

# How many reads a module keeps, and why.
KEPT: Mapping[str, tuple[int, str]] = {
    "assets.py": (2, _OF_THE_PACKAGE),
    "bench/agents.py": (1, _OF_THE_PACKAGE),
    "operations/bench.py": (1, _OF_THE_PACKAGE),
    "bench/workload.py": (1, _OF_THE_PACKAGE),
    "catalog/load.py": (1, _OF_THE_PACKAGE),
    "catalog/read.py": (1, _OF_THE_PACKAGE),
    "client/endpoint.py": (1, "the body of an `intake.answers.Answer`, which is bounded"),
    "doctor/deployment.py": (1, _OF_THE_KERNEL),
    "operations/ask.py": (1, "Pillow reads a picture whose bytes were read with a limit"),
    "host/gpu.py": (2, _OF_THE_KERNEL),
    "features/export/ray.py": (1, _OF_THE_PACKAGE),
    "features/page/guard.py": (1, _OF_THE_KERNEL),
    "features/page/conversation.py": (1, "a picture in memory, which `operations.ask.picture` has checked"),
    "features/monitoring/operations.py": (1, _OF_THE_PACKAGE),
    "runtime/process.py": (2, _OF_THE_KERNEL),
    "runtime/native_process.py": (1, _OF_THE_KERNEL),
}

# Reads that are to go through `intake`. This list only gets shorter.
STILL_TO_DO: Mapping[str, int] = {
    "bench/workload.py": 1,
    "client/stream.py": 1,
}


def reads_in(tree: ast.AST) -> Iterator[str]:
    """Each call that reads a file or parses a text from outside, by its name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open" as name) | ast.Name(id="from_json" as name):
                yield name
            case ast.Attribute(value=ast.Name(id="json"), attr="load" | "loads" as name):
                yield f"json.{name}"
            case ast.Attribute(value=ast.Name(id="yaml"), attr=name) if "load" in name or name in {"parse", "scan"}:
                yield f"yaml.{name}"
            case ast.Attribute(value=ast.Name(id="os" | "tarfile")):
                # os.open creates the files that are locked and written; it returns no content
                continue
            case ast.Attribute(attr="open" as name) if not writes(node):
                yield name
            case ast.Attribute(attr="json" as name) if not node.args and not node.keywords:
                yield name
            case ast.Attribute(attr=name) if name in READS:
                yield name


def writes(call: ast.Call) -> bool:
    """Whether a call of `open` opens for writing."""
    modes = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and str(mode.value)[:1] in set("wax") for mode in modes)


def found() -> dict[str, Counter[str]]:
    """The reads of each module outside the rooms that may read."""
    modules = (file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in OWN_ROOMS)
    reads = {str(file.relative_to(PACKAGE)): Counter(reads_in(tree_of(file.resolve()))) for file in modules}
    return {file: names for file, names in reads.items() if names}


def test_nothing_is_read_beside_intake() -> None:
    allowed = Counter({file: count for file, (count, _) in KEPT.items()}) + Counter(STILL_TO_DO)
    now = {file: names.total() for file, names in found().items()}
    assert now == allowed, found()


def test_each_way_of_reading_is_found() -> None:
    text = """
json.load(a); json.loads(b); yaml.load(c); yaml.safe_load(d); open(e); f.open(); g.open("rb"); h.read_text()
i.read_bytes(); j.json(); K.model_validate_json(l); from_json(m); n.open(mode="r")
"""
    assert len(list(reads_in(ast.parse(text)))) == 13


def test_writing_is_not_reading() -> None:
    text = 'json.dumps(a); b.open("wb"); os.open(c, 0); yaml.safe_dump(d); e.json(a=1); f.open(mode="x")'
    assert list(reads_in(ast.parse(text))) == []
