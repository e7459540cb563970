"""Lines of real logs (vLLM 0.32 on the CPU), and the phase they begin."""

import pytest

from dflash_deploy.boot.phases import message_of, phase_after

LINES = [
    ("dflash: vLLM 0.32.0: vllm serve /models/target --host 0.0.0.0", "starting vLLM"),
    (
        "(APIServer pid=23767) INFO 11-21 11:01:24 [model.py:733] Resolved architecture: DFlashDraftModel",
        "reading the configuration",
    ),
    (
        "(EngineCore pid=24019) INFO 11-21 11:01:44 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: ",
        "starting the engine process",
    ),
    (
        "(Worker pid=24045) INFO 11-21 11:01:56 [default_loader.py:501] Loading weights took 0.08 seconds",
        "loading weights",
    ),
    (
        "(EngineCore pid=24019) INFO 11-21 11:01:58 [kv_cache_utils.py:2327] CPU KV cache size: 349,525 tokens",
        "sizing the KV cache",
    ),
    (
        "(EngineCore pid=24019) INFO 11-21 11:02:03 [core.py:402] init engine (profile, create kv cache, warmup model) "
        "took 5.02 s",
        "warming up",
    ),
    (
        "(APIServer pid=23767) INFO 11-21 11:02:06 [entry.py:140] Starting vLLM server on http://127.0.0.1:8411",
        "opening the endpoint",
    ),
    ("INFO:     Application startup complete.", "opening the endpoint"),
]


@pytest.mark.parametrize(("line", "phase"), LINES)
def test_each_line_begins_its_phase(line: str, phase: str) -> None:
    assert phase_after([line], "starting") == phase


def test_other_lines_leave_the_phase_alone() -> None:
    assert phase_after(["INFO 11-21 11:01:44 [x.py:1] something new", ""], "compiling") == "compiling"


def test_the_message_is_what_stays_of_a_line() -> None:
    assert message_of(LINES[3][0]) == "Loading weights took 0.08 seconds"
    assert message_of("plain text") == "plain text"
