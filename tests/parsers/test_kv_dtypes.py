"""The types of KV cache that the catalog has are those of the released engines: none is refused without a reason."""

import ast

from dflash_deploy.catalog.load import load_catalog
from tests.support.parsers.fetch import fetched

ENGINES = load_catalog().engines


def test_vllm_has_the_types_that_its_wheel_has() -> None:
    tree = ast.parse((fetched("vllm-0.33.0") / "vllm" / "config" / "cache.py").read_text(encoding="utf-8"))
    (literal,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CacheDType"
    )
    assert set(ENGINES["vllm-0.33"].kv_dtypes) == {
        node.value for node in ast.walk(literal) if isinstance(node, ast.Constant)
    }
