"""The real SGLang with its drafter: what it answers, what it counts, and what the commands say of it."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import Prompt
from dflash_deploy.checks.run import CHECKS
from dflash_deploy.operations.keys import usage_of_keys
from tests.sglang.conftest import ALICE_KEY
from tests.support.cli import dflash
from tests.support.contract import SGLANG, obeys_a_schema_of_responses, problems
from tests.support.server import Server

# tools and reasoning need a parser, and the name of a model is not checked
NOT_HERE = {"digit", "shape", "tools", "reasoning", "name"}

KINDS = {"chat": 24, "thinking": 14, "image": 14, "long": 8}  # how many prompts of each kind are answered

VLLM_LENGTH = 7.48  # vLLM 0.32's acceptance length over them; it verified drafts in 259 steps, and SGLang did too


@pytest.fixture(scope="session")
def chosen(prompts: list[Prompt]) -> list[Prompt]:
    return [one for kind, count in KINDS.items() for one in [p for p in prompts if p.kind == kind][:count]]


def answers(server: Server, chosen: list[Prompt], *, streams: int) -> dict[str, str]:
    """The answer to each prompt, by its id."""
    with server.connect() as endpoint, ThreadPoolExecutor(streams) as pool:
        said = pool.map(lambda prompt: endpoint.complete(prompt.body(endpoint.model)).text, chosen)
        return dict(zip((prompt.id for prompt in chosen), said, strict=True))


@pytest.fixture(scope="session")
def plain(server: Server, chosen: list[Prompt]) -> dict[str, str]:
    """Greedy answers without drafts."""
    server.serve(drafting=False).close()
    return answers(server, chosen, streams=2)


def test_greedy_answers_are_those_of_transformers(
    plain: dict[str, str], chosen: list[Prompt], transformers: Any
) -> None:
    """Of texts: the preparation of images is not the stand-ins'."""
    target = asset("models/tiny/target")
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    model = transformers.AutoModelForImageTextToText.from_pretrained(target, dtype=torch.bfloat16).eval()
    for prompt in chosen:
        if prompt.image is not None or prompt.kind == "long":
            continue
        body: dict[str, Any] = prompt.body("tiny")
        asked = tokenizer.apply_chat_template(
            body["messages"],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            **body["chat_template_kwargs"],
        )
        with torch.inference_mode():
            tokens = model.generate(**asked, max_new_tokens=body["max_tokens"], do_sample=False)
        said = tokenizer.decode(tokens[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        assert plain[prompt.id].strip() == said.strip(), prompt.id


def test_drafts_change_no_answer_and_are_accepted_as_often_as_in_vllm(
    plain: dict[str, str], drafting: Server, chosen: list[Prompt]
) -> None:
    with drafting.connect() as endpoint:
        before = endpoint.counters()
        drafted = answers(drafting, chosen, streams=4)
        counted = endpoint.counters() - before
    assert {name: text for name, text in drafted.items() if text != plain[name]} == {}
    # tokens after the end of an answer are accepted in vLLM's count
    print(f"acceptance length {counted.acceptance_length:.2f} over {counted.drafts} drafts, vLLM's {VLLM_LENGTH}")
    assert counted.acceptance_length == pytest.approx(VLLM_LENGTH, rel=0.05)
    assert counted.draft_tokens == 7 * counted.drafts


def test_all_checks_pass(drafting: Server) -> None:
    data = dflash("test", "--json", at=drafting.directory).succeeded().document["data"]
    assert {check["name"] for check in data["checks"]} == set(CHECKS)
    statuses = {check["name"]: check["status"] for check in data["checks"]}
    assert {name for name, status in statuses.items() if status == "skipped"} == NOT_HERE
    assert set(statuses.values()) == {"passed", "skipped"}
    assert 6 < data["acceptance_length"] <= 8
    assert max(data["acceptance_by_workload"].values()) <= 8
    got = {check["name"]: check["got"] for check in data["checks"]}
    assert re.match(r"the target prefers each of \d+ tokens; \d+ draft tokens were rejected", got["lossless"])


def test_the_endpoint_keeps_its_contract_on_this_engine(drafting: Server) -> None:
    with drafting.connect() as endpoint:
        assert problems(endpoint.url, drafting.key, other=SGLANG) == []
        assert obeys_a_schema_of_responses(endpoint.url, drafting.key)


def test_a_question_is_answered_and_a_ready_engine_stays_as_it_is(drafting: Server) -> None:
    asked = dflash("ask", "What is the capital of France?", at=drafting.directory).succeeded()
    assert "Paris" in asked.out
    assert dflash("up", "--json", at=drafting.directory).succeeded().document["data"]["changed"] is False
    status = dflash("status", "--json", at=drafting.directory).succeeded().document["data"]
    assert status["state"] == "ready"
    assert 1 < status["acceptance_length"] <= 8
    assert 1 < status["memory_gib"] < 8


def test_a_load_is_measured_with_drafts_and_without(drafting: Server) -> None:
    options = ("--baseline", "--concurrency", "1,4", "--requests", "8")
    rows = dflash("bench", "--json", *options, at=drafting.directory).succeeded().document["data"]["rows"]
    assert {(row["drafter"], row["concurrency"], row["draft_tokens"]) for row in rows} == {
        *((True, 1, 7), (True, 4, 7)),
        *((False, 1, 0), (False, 4, 0)),
    }
    for row in rows:
        assert (row["requests"], row["failed"]) == (8, 0)
        counted = row["counted"] or {}
        if row["drafter"]:
            assert 6 < row["acceptance_length"] <= 8
            assert row["speedup"] > 1
            assert row["output_tokens"] == row["requests"] + counted["drafts"] + counted["accepted_tokens"]
    assert len({row["output_tokens"] for row in rows}) == 1


def test_what_is_counted_by_name_is_what_the_engine_has_counted(drafting: Server) -> None:
    """Her key may have one request in flight: each of these has ended when its answer has."""
    before = drafting.counted_tokens()
    chat = [{"role": "user", "content": "Count from 1 to 5."}]
    with drafting.connect() as endpoint:
        url, model = endpoint.url, endpoint.model
    for path, body in (
        ("/v1/chat/completions", {"messages": chat}),
        ("/v1/chat/completions", {"messages": chat, "stream": True}),
        ("/v1/completions", {"prompt": "1 2 3", "stream": True}),
        ("/v1/messages", {"messages": chat}),
        ("/v1/messages", {"messages": chat, "stream": True}),
    ):
        sent = {"model": model, "max_tokens": 9, **body}
        said = httpx.post(url + path, json=sent, headers={"x-api-key": ALICE_KEY}, timeout=300)
        assert said.status_code == 200, said.text
    counted = drafting.counted_tokens() - before
    (used,) = (one for one in usage_of_keys(drafting.directory).keys if one.name == "alice")
    assert (used.prompt_tokens, used.generation_tokens) == (counted["prompt"], counted["generation"])
    assert used.requests == {"200": 5}
