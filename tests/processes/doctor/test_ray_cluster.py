"""What `doctor` asks a Ray cluster, and which variables vLLM copies to its workers."""

import os
import subprocess
import sys
from contextlib import closing
from socket import create_server

from dflash_deploy.doctor import network
from dflash_deploy.serve.engines.vllm import RAY_CONFIG
from tests.support.examined import a_plan, a_subject

COPIED = "from vllm.ray.ray_env import get_env_vars_to_copy as copied; print('COPIED', *sorted(copied()))"


def test_a_port_where_nothing_listens_is_not_asked() -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    (check,) = network.ray_cluster(
        a_subject(), a_plan(runtime="native", DISTRIBUTED_EXECUTOR="ray", RAY_ADDRESS=address)
    )
    assert (check.status, check.saw) == ("no", f"nothing listens at RAY_ADDRESS={address}")


def test_an_environment_without_ray_is_named() -> None:
    with closing(create_server(("127.0.0.1", 0))) as head:
        (check,) = network.ray_cluster(
            a_subject(),
            a_plan(runtime="native", DISTRIBUTED_EXECUTOR="ray", RAY_ADDRESS=f"127.0.0.1:{head.getsockname()[1]}"),
        )
    assert check.saw.startswith("Ray is not installed beside the engine")


def test_vllm_copies_no_key_to_the_workers() -> None:
    keys = dict.fromkeys(("VLLM_API_KEY", "HF_TOKEN", "DFLASH_API_KEYS"), "a-secret-of-some-length")
    copied = {}
    for config in (str(RAY_CONFIG), "/nowhere"):
        environment = {**os.environ, **keys, "NCCL_DEBUG": "INFO", "VLLM_CONFIG_ROOT": config}
        asked = subprocess.run(
            [sys.executable, "-c", COPIED], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        (line,) = [line for line in asked.stdout.splitlines() if line.startswith("COPIED")]
        copied[config] = set(line.split())
    assert not copied[str(RAY_CONFIG)] & keys.keys()
    assert "NCCL_DEBUG" in copied[str(RAY_CONFIG)]
    # without it, vLLM would copy them
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= copied["/nowhere"]
