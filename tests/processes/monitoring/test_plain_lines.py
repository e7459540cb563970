"""The keys of .env as the Secret of Kubernetes gets them, with the sed of this machine."""

import subprocess
from pathlib import Path

from dflash_deploy.features.export.folder import KEYS, plain_lines


def test_each_way_to_write_a_key_becomes_a_plain_line(tmp_path: Path) -> None:
    env = tmp_path / "a file.env"
    env.write_text(
        "export VLLM_API_KEY=one\n VLLM_API_KEY = two # why\nDFLASH_API_KEYS=a:three\n"
        "\texport\tDFLASH_API_KEYS=b:four\n"
        "# VLLM_API_KEY=no\nMY_VLLM_API_KEY=no\nexportVLLM_API_KEY=no\nHF_TOKEN=no\n"
    )
    done = subprocess.run(["sh", "-c", plain_lines(str(env), *KEYS)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "VLLM_API_KEY=one",
        "VLLM_API_KEY=two # why",
        "DFLASH_API_KEYS=a:three",
        "DFLASH_API_KEYS=b:four",
    ]
