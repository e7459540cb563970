"""Refused requests: named while the engine serves, and no cause of its end."""

import pytest

from dflash_deploy.diagnosis.diagnose import ProcessEnd
from tests.unit.startup.explained import FAILED, FAILURES, explained, named

OOM = "Out of memory: Killed process 24045 (VLLM::EngineCor) total-vm:48922340kB, anon-rss:16384000kB"
CALM = [f"(APIServer pid=1) INFO 11-21 11:02:{n:02} [loggers.py:1] Avg prompt throughput: {n}" for n in range(50)]
LLAMACPP_ANSWER = "srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200"

# Refused requests: the engine, and what it writes.
OF_REQUESTS = {
    "request-beyond-context": (
        "vllm",
        "(APIServer pid=1) ERROR 11-21 11:01:56 [serving.py:9] ValueError: This model's maximum context length is 4096"
        " tokens. However, you requested 9000 tokens.",
    ),
    "image-unreadable": ("vllm", "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>"),
    "images-not-served": ("llamacpp", 'got exception: {"code":500,"message":"image input is not supported"}'),
    "grammar-refused": ("llamacpp", "srv    operator(): got exception: failed to parse grammar"),
    "tools-not-enabled": ("llamacpp", "error: tools param requires --jinja flag"),
    "images-beyond-limit": ("vllm", "ValueError: At most 1 image(s) may be provided in one prompt."),
    "chat-template-refuses": ("vllm", "jinja2.exceptions.TemplateError: Conversation roles must alternate"),
    "chat-template-missing": (
        "vllm",
        "ChatTemplateResolutionError: As of transformers v4.44, default chat template is no longer allowed",
    ),
    "schema-beyond-xgrammar": (
        "vllm",
        "ValueError: The provided JSON schema contains features not supported by xgrammar.",
    ),
    "image-beyond-pixels": (
        "vllm",
        "ValueError: Image dimensions 30000x30000 (900000000 pixels) exceed the maximum of 178956970 pixels.",
    ),
    "media-domain-refused": (
        "vllm",
        "ValueError: The URL must be from one of the allowed domains: ['a.example']. Input URL domain: b.example",
    ),
}


def test_these_are_the_rows_of_requests() -> None:
    assert {failure.id for failure in FAILURES if failure.request} >= OF_REQUESTS.keys()


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_refused_request_is_named_as_long_as_no_end_is_known(name: str) -> None:
    engine, line = OF_REQUESTS[name]
    assert named([line], engine=engine) == name
    assert named([line, *CALM], engine=engine) == name


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_refused_request_does_not_hide_a_kill_for_memory(name: str) -> None:
    engine, line = OF_REQUESTS[name]
    for log in ([line], [line, *CALM]):
        assert named(log, ProcessEnd(137), engine, (OOM,)) == "kernel-killed-engine"
        assert named(log, ProcessEnd(), engine, (OOM,)) == "kernel-killed-engine"
        assert named([*log, f"[123.4] {OOM}"], ProcessEnd(), engine) == "kernel-killed-engine"
        assert named(log, ProcessEnd(137, out_of_memory=True), engine) == "container-out-of-memory"
        # SGLang kills itself with signal 9 after a failure of its own, whose reason the log may not have
        assert named(log, ProcessEnd(137), engine) == ("" if engine == "sglang" else "killed")


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_refused_request_is_no_cause_of_another_end(name: str) -> None:
    engine, line = OF_REQUESTS[name]
    log = [line, *CALM]
    assert named(log, ProcessEnd(139), engine) == "segmentation-fault"
    assert named(log, ProcessEnd(-11), engine) == "segmentation-fault"
    assert named(log, ProcessEnd(restarts=3), engine) == "crash-loop"
    assert named(log, ProcessEnd(ended=True), engine) is None
    unknown = explained(log, FAILED, engine)
    assert unknown.diagnosis is None
    assert unknown.lines


def test_an_unknown_exception_behind_a_refused_request_is_shown() -> None:
    _, line = OF_REQUESTS["request-beyond-context"]
    found = explained([line, *CALM, "ValueError: the moon is full"], FAILED)
    assert found.diagnosis is None
    assert found.lines == ("ValueError: the moon is full",)


def test_a_request_that_llamacpp_answers_makes_the_refused_one_history() -> None:
    engine, line = "llamacpp", "srv send_error: the request exceeds the available context size"
    assert named([line], engine=engine) == "request-beyond-context"
    for before in ("", "0.51.940.248 I "):
        assert named([line, before + LLAMACPP_ANSWER], engine=engine) is None
        assert named([line, before + LLAMACPP_ANSWER.replace("200", "500")], engine=engine) is not None
        probe = LLAMACPP_ANSWER.replace("POST /v1/chat/completions", "GET /health")
        assert named([line, before + probe], engine=engine) is not None


@pytest.mark.parametrize(
    "timing",
    [
        "0.01.586.330 I slot print_timing: id  0 | task 47 |       total time =      26.45 ms /    89 tokens",
        "      total time =     169.02 ms /    12 tokens",
    ],
)
def test_a_generation_that_llamacpp_finishes_makes_the_refused_request_history(timing: str) -> None:
    """Its server logs neither requests nor idle slots unless it is told to: the timing is the sign of an answer."""
    engine = "llamacpp"
    refused = "0.03.455.096 E srv    send_error: task id = 782, error: request (4113 tokens) exceeds the available"
    released = "0.03.455.127 I slot      release: id  0 | task 782 | stop processing: n_tokens = 0, truncated = 0"
    read = "0.03.455.140 I slot print_timing: id  0 | task 790 | prompt eval time =       5.61 ms /    25 tokens"
    assert named([refused + " context size", released], engine=engine) == "request-beyond-context"
    assert named([refused + " context size", released, read], engine=engine) == "request-beyond-context"
    assert named([refused + " context size", released, timing], engine=engine) is None
    assert named([timing, refused + " context size", released], engine=engine) == "request-beyond-context"
