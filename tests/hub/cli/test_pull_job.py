"""The Job of an exported folder: its own command fills the claim, and continues after it was killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dflash_deploy.features.export import operations, pull
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.operations import export_kubernetes
from tests.support.box import CONFIG, DRAFTER, DRAFTS, TARGET, Box
from tests.support.hub import Hub, read
from tests.support.hub.faults import Drip, Halt
from tests.support.manifests import pod_of

TOKEN = "hf_reader"


def in_pod(folder: Path, pod: Path) -> tuple[str, ...]:
    """The Job's command with the pod's directories below `pod`, and in them what it mounts."""
    settings = yaml.safe_load((folder / "pull/settings.yaml").read_text())["data"]
    (container,) = pod_of(yaml.safe_load((folder / "pull/job.yaml").read_text()))["containers"]
    for mount in container["volumeMounts"]:
        (pod / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name, text in settings.items():
        (pod / pull.INPUT.lstrip("/") / name).write_text(text.replace("=/models/", f"={pod}/models/"))
    script = container["command"][2]
    for place in (pull.INPUT, pull.WORK, pull.TOKENS):
        script = script.replace(place, f"{pod}{place}")
    return (*container["command"][:2], script)


def test_the_job_fills_the_claim_and_continues_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(accounts={TOKEN: "reader"}) as hub:
        hub.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": TARGET})
        hub.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": DRAFTER})
        options = ("--profile", "cpu", "--model", "local", "--runtime", "compose", "--models-dir", str(tmp_path / "m"))
        box = Box(hub, tmp_path, options=options)
        with (box.directory / ".env").open("a") as file:
            # the Job asks the same mirror as the deployment
            file.write(f"HF_ENDPOINT={box.environment.pop('HF_ENDPOINT')}\n")
        box.pull().succeeded()
        for name, value in box.environment.items():
            monkeypatch.setenv(name, value)
        # the image of a Job has the packaged catalog only: here it also knows the models of the tests
        monkeypatch.setattr(operations, "OWN", "OF_ANOTHER_NAME")
        out = tmp_path / "out"
        export_kubernetes(box.directory, out, Cluster(weights="claim"))
        pod = tmp_path / "pod"
        command = in_pod(out, pod)
        (pod / "run/secrets" / pull.TOKEN).write_text(f"{TOKEN}\n")
        hub.forget()
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        for fault in (Drip(400_000), Halt(2_000_000)):
            hub.faults("o/target/model.safetensors", fault, forever=True)
        first = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + 60
        while hub.sent("o/target/model.safetensors") < 1_000_000:
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first.send_signal(signal.SIGTERM)
        first.wait(20)
        hub.heal()
        weights = {"target": TARGET, "drafter": DRAFTER}
        assert not (pod / "models/target/model.safetensors").exists()
        # the next try is another pod, which has only the claim in common
        shutil.rmtree(pod / "work")
        (pod / "work").mkdir()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        for role, content in weights.items():
            assert (pod / "models" / role / "model.safetensors").read_bytes() == read(content)
        assert hub.sent("o/target/model.safetensors") < 1.3 * TARGET.size
        assert all(seen.authorised for seen in hub.requests("o/target/config.json", stage="body"))
        assert (pod / "work/.env").stat().st_mode & 0o077 == 0
        assert (pod / "work/dflash.lock").read_text() == (box.directory / "dflash.lock").read_text()
