"""The routes of SGLang's server by its source, and which of them its own check leaves open."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.parsers.fetch import fetched

ENTRYPOINTS = "sglang/srt/entrypoints"
MODULES = ("http_server.py", "elastic_ep.py", "v1_loads.py")

METRICS = ("GET", "/metrics")  # mounted below the application (srt/observability), with --enable-metrics


def routes() -> set[tuple[str, str]]:
    """Method and path of each route that SGLang 0.5.23 declares."""
    folder = fetched("sglang-0.5.23") / ENTRYPOINTS
    return {METRICS} | {route for name in MODULES for route in _declared(folder / name)}


def left_open(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The routes that SGLang's own check lets in without a key, although the server has one."""
    auth = _auth()
    return {
        (method, path)
        for method, path in found
        if auth.decide_request_auth(
            method=method,
            path=path,
            authorization_header=None,
            api_key="a-key",
            admin_api_key=None,
            auth_level=auth.AuthLevel.NORMAL,
        ).allowed
    }


def _auth() -> Any:
    file = fetched("sglang-0.5.23") / "sglang" / "srt" / "utils" / "auth.py"
    spec = importlib.util.spec_from_file_location("sglang_auth", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # its dataclasses look up their module
    sys.modules["sglang_auth"] = module
    spec.loader.exec_module(module)
    return module


def _declared(module: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute) and decorator.args:
                    yield from _of(decorator, decorator.func.attr)


def _of(decorator: ast.Call, kind: str) -> Iterator[tuple[str, str]]:
    # a path, or a variable of the environment with the path as its default
    place = decorator.args[0]
    place = place.args[1] if isinstance(place, ast.Call) else place
    if not (isinstance(place, ast.Constant) and isinstance(place.value, str) and place.value.startswith("/")):
        return
    named = [ast.literal_eval(keyword.value) for keyword in decorator.keywords if keyword.arg == "methods"]
    methods = (
        named[0] if named else {"get": ["GET"], "post": ["POST"], "put": ["PUT"], "delete": ["DELETE"]}.get(kind, [])
    )
    yield from ((method, place.value) for method in methods)
