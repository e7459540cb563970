"""The pod of an exported SGLang as a container without a GPU: the released SGLang starts as the manifest says.

It needs a GPU, so it answers nothing here: it ends where it looks for one, after its own parser took the arguments.
"""

import json
from collections.abc import Iterator

import pytest

from tests.support.commands import checked, wait_until
from tests.support.engine_pod import SILENT, EnginePod, confined, engine_pod
from tests.support.exported_pods import build
from tests.support.pod_asked import HANGS, looked
from tests.support.standin_sglang import ensure_base

IMAGE = "dflash-deploy/sglang:pods-under-test"
CHOSEN = ("--profile", "h100", "--engine", "sglang", "--model", "tiny")

ARGUMENTS = (
    "--model-path /models/target --served-model-name tiny --host 0.0.0.0 --port 8000 --enable-metrics",
    "--speculative-algorithm DFLASH --speculative-draft-model-path /models/drafter --speculative-num-draft-tokens 8",
)
"""Words that the command line must have."""


@pytest.fixture(scope="module")
def began(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePod]:
    """The pod, on a node that ignores that it needs a GPU, when its container has just been started."""
    build("sglang", IMAGE, ensure_base(base_image, tmp_path_factory.mktemp("sglang")))
    place = tmp_path_factory.mktemp("pod-sglang")
    with engine_pod(place, IMAGE, base_image, *CHOSEN, ignores_gpus=True) as started:
        yield started


def test_the_container_can_do_what_the_manifest_says_and_no_more(began: EnginePod) -> None:
    server = "dflash_deploy.serve.engines.sglang_server"
    assert wait_until(lambda: server in looked(began.pod)["first"], HANGS)
    confined(began.pod)
    assert began.pod.of("engine").gpus == 1


def test_probes_fail_while_nothing_listens(began: EnginePod) -> None:
    assert began.early == SILENT


def test_sglang_takes_the_arguments_and_ends_where_it_looks_for_a_gpu(began: EnginePod) -> None:
    code = int(checked("docker", "wait", began.pod.containers["engine"], timeout=HANGS))
    log = began.pod.logs("engine")
    begun = next(line for line in log.splitlines() if line.startswith("dflash: SGLang 0.5.23: "))
    assert [words for words in ARGUMENTS if words not in begun] == []
    assert code == 1
    assert "No accelerator" in log.splitlines()[-1], log[-2000:]
    # its own parser returned before it looked for one
    assert "usage:" not in log
    assert began.key not in json.dumps(began.pod.inspected("engine")) + log
