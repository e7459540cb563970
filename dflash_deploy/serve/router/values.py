"""What SMG is started with, derived from the size of one engine. Measured with SMG 1.13 before two engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_deploy.serve.field import VLLM

MIB = 1 << 20

ROUTES = (
    *(
        "/workers",
        "/engine_metrics",
        "/loads",
        "/get_loads",
        "/flush_cache",
        "/readiness",
        "/liveness",
        "/health_generate",
    ),
    *("/server_info", "/get_server_info", "/get_model_info", "/generate", "/wasm", "/start_profile", "/stop_profile"),
    *("/v1/conversations", "/v1/tokenizers", "/v1/classify", "/parse/function_call", "/parse/reasoning"),
)
"""Routes of SMG that the published door must not pass on. Some are answered without a key, such as /engine_metrics."""

USUAL_SEQUENCES = 4
"""Sequences of an engine if MAX_NUM_SEQS is left to it."""


@dataclass(frozen=True)
class Value:
    """The value of one argument of SMG, and why it is not SMG's default."""

    value: object
    reason: str


def router_values(max_num_seqs: int | None, *, hang_seconds: int, max_body_mib: int) -> dict[str, Value]:
    """The arguments of SMG's RouterArgs that differ from its defaults, by name.

    `max_num_seqs` is that of one engine, `hang_seconds` the seconds without a byte after which a stream counts as
    hung, `max_body_mib` the largest request that the engines accept.
    """
    return {
        **_balance(max_num_seqs or USUAL_SEQUENCES),
        **_failures(),
        "stream_body_stall_timeout_secs": Value(
            # 0: the engines' own check of a hang is off
            hang_seconds or 300,
            "a stream on an engine that hangs ends with an error; SMG waits 300 s",
        ),
        "max_payload_size": Value(
            (max_body_mib + 1) * MIB, "larger than the engines' own limit, so that they answer 413 themselves"
        ),
        "backend": Value(VLLM, "the names of the metrics with which SMG reads an engine's load"),
        "shutdown_grace_period_secs": Value(30, "open streams end before the process is killed"),
        "history_backend": Value(
            "none", "SMG would keep what any user of the machine posts to /v1/conversations, without a key"
        ),
        "disable_tokenizer_autoload": Value(True, "no tokenizer is downloaded: requests are matched by their text"),
    }


def _balance(sequences: int) -> Mapping[str, Value]:
    return {
        "policy": Value("cache_aware", "the turns of a conversation go to the engine that has their prefix"),
        "balance_abs_threshold": Value(
            max(1, sequences // 8),
            f"a request leaves the engine that has its prefix once that one has this many more than the mean of all: "
            f"an eighth of the {sequences} sequences of an engine, at least 1. Of two engines, with 2, four clients "
            f"with one system prompt leave one idle; with SMG's 64, 19 of 20 requests go to one",
        ),
        "balance_rel_threshold": Value(
            1.1, "and once it has a tenth more; SMG's 1.5 leaves a queue while another engine has free sequences"
        ),
        "worker_overload_protection": Value(
            False,
            "an engine with 8 waiting requests would be left out, also if it is the only one left: after one of two "
            "engines was killed, SMG answered 20,031 requests with 503",
        ),
        "load_monitor_interval": Value(2, "seconds between two readings of an engine's load, which show a hang too"),
    }


def _failures() -> Mapping[str, Value]:
    return {
        "health_check_interval_secs": Value(2, "a killed engine is out after 4 s, and back 4 s after its return"),
        "health_failure_threshold": Value(2, "one failed check may be a busy engine"),
        "health_success_threshold": Value(1, "an engine that was added has been proven with a generation"),
        "health_check_timeout_secs": Value(10, "a busy engine misses 2 s (gonka-ai/gonka#1421)"),
        "cb_failure_threshold": Value(3, "failed requests in a row after which an engine gets none for a while"),
        "cb_success_threshold": Value(1, "one success ends that"),
        "cb_timeout_duration_secs": Value(10, "seconds until it is tried again; SMG waits 60"),
        "worker_startup_check_interval": Value(2, "seconds between two attempts to reach an engine that was added"),
    }
