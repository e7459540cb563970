"""`python -m dflash_deploy.serve` as the image starts it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import dflash_deploy.serve

PACKAGE = Path(dflash_deploy.serve.__file__).parent


def serve(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dflash_deploy.serve", "--print"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_argument_list_is_shown_without_the_key() -> None:
    done = serve({"MODEL_PATH": "/m", "VLLM_API_KEY": "a-very-secret-key"})
    assert done.returncode == 0, done.stderr
    assert "vllm serve /m" in done.stdout
    assert "a-very-secret-key" not in done.stdout + done.stderr


def test_without_a_key_nothing_is_started() -> None:
    done = serve({"MODEL_PATH": "/m"})
    assert done.returncode == 3
    assert "VLLM_API_KEY is not set" in done.stderr


def test_settings_that_cannot_work_end_with_3_and_one_line() -> None:
    done = serve({"MODEL_PATH": "/m", "MAX_NUM_SEQS": "many"})
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "MAX_NUM_SEQS=many" in done.stderr


def test_serve_needs_nothing_but_what_its_images_have() -> None:
    everywhere = set(sys.stdlib_module_names) | {"dflash_deploy", "torch", "sglang", "vllm"}
    for file in PACKAGE.rglob("*.py"):
        # SGLang's server is a FastAPI application; every image has the client of Prometheus, aiohttp and Pillow
        beside = {
            "door": {"aiohttp", "yarl"},
            "engines": {"fastapi"},
            "gateway": {"prometheus_client", "aiohttp", "yarl", "PIL"},
        }
        # only Ray's proxy imports this module: it has these
        ray = {"starlette", "aiohttp", "ray"} if file.name == "ray_proxy.py" else set()
        allowed = everywhere | beside.get(file.parent.name, set()) | ray
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in allowed, file
                assert not str(node.module).startswith("dflash_deploy.") or "serve" in str(node.module), file


def test_the_engines_are_imported_where_they_are_met_and_not_before() -> None:
    beside_vllm = {PACKAGE / "nvfp4" / name for name in ("config.py", "method.py", "reference.py")}
    importing = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if {name.split(".")[0] for name in names} & {"torch", "sglang", "vllm"}:
                importing.add(file)
            if file not in beside_vllm:
                assert not {name.removeprefix("dflash_deploy.serve.") for name in names} & {
                    "nvfp4.config",
                    "nvfp4.method",
                    "nvfp4.reference",
                }, file
    assert importing == beside_vllm


def test_the_health_check_says_no_where_nothing_listens() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_deploy.serve.gateway.health"],
        env={"PATH": os.environ["PATH"], "DFLASH_PORT": "9"},
        check=False,
    )
    assert done.returncode == 1


def test_sglang_names_the_directory_of_its_counters_before_prometheus_is_imported() -> None:
    # prometheus_client decides at its import whether counters of several processes are added up
    said = "import sys, dflash_deploy.serve.engines.sglang_server; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
