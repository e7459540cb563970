"""The image of SGLang as a container without a GPU: the released SGLang starts with the settings of a deployment.

It needs a GPU, so it answers nothing here: it ends where it looks for one, after its own parser took the arguments.
"""

import subprocess
from pathlib import Path

from dflash_deploy.deployment.compose import VARIABLE
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from tests.support.cli import initialise
from tests.support.commands import checked
from tests.support.standin_sglang import ensure_base

ROOT = Path(__file__).parents[2]
IMAGE = "dflash-deploy/sglang:under-test"

# Words that the command line must have.
ARGUMENTS = (
    "--model-path /models/target --served-model-name tiny --host 0.0.0.0 --port 8000 --enable-metrics",
    "--speculative-algorithm DFLASH --speculative-draft-model-path /models/drafter --speculative-num-draft-tokens 8",
)


def test_sglang_takes_the_arguments_and_ends_where_it_looks_for_a_gpu(base_image: str, tmp_path: Path) -> None:
    base = ensure_base(base_image, tmp_path)
    dockerfile = str(ROOT / "images/sglang/Dockerfile")
    checked("docker", "build", "-f", dockerfile, f"--build-arg=BASE_IMAGE={base}", "-t", IMAGE, str(ROOT), timeout=900)
    place = tmp_path / "deployment"
    initialise("--profile", "h100", "--engine", "sglang", "--model", "tiny", "--runtime", "compose", at=place)
    deployment = Deployment(place)
    service = parse_packaged_yaml(deployment.compose_file.read_text())["services"]["engine"]
    values = deployment.values
    settings = {
        name: VARIABLE.sub(lambda found: values.get(found["name"]) or found["default"] or "", text)
        for name, text in service["environment"].items()
        # the file of further keys is not mounted below, and there are none
        if name != KEYS_FILE
    }
    owner = deployment.env_file.stat()
    ran = subprocess.run(
        [
            # as Compose does, as the user who can read .env
            *(
                "docker",
                "run",
                "--rm",
                f"--user={owner.st_uid}:{owner.st_gid}",
                "--read-only",
                "--tmpfs",
                "/tmp",
                "--tmpfs",
                "/cache:mode=1777",
            ),
            *(f"--env={name}={value}" for name, value in settings.items()),
            *(f"--volume={ROOT}/models/tiny/{role}:/models/{role}:ro" for role in ("target", "drafter")),
            *("--volume", f"{deployment.env_file}:{settings['DFLASH_SECRETS_FILE']}:ro", IMAGE),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    log = ran.stdout + ran.stderr
    begun = next((line for line in log.splitlines() if line.startswith("dflash: SGLang 0.5.23: ")), log)
    assert [words for words in ARGUMENTS if words not in begun] == []
    assert ran.returncode == 1
    assert "No accelerator" in log.strip().splitlines()[-1], log[-2000:]
    # its own parser returned before it looked for one
    assert "usage:" not in log
    assert deployment.key.reveal() not in log
