"""What an engine would answer wrongly is refused or rewritten before it, and its errors have the form of the API."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.serve.door.__main__ import BEHIND
from dflash_deploy.serve.gateway import contract
from dflash_deploy.serve.gateway.asgi import Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.contract import NO_QUIRKS, EngineQuirks, abilities_of
from dflash_deploy.serve.gateway.reply import LONGEST_ERROR
from tests.support.contract import ASKED, CHAT, COMPLETIONS, MESSAGES, RESPONSES, ROWS, SCHEMA, drawn, said
from tests.support.locked import FIRST, KEYS, bearer, request, talk

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "endpoint.md"
SERVED = {"SERVED_MODEL_NAME": "tiny small", "MAX_MODEL_LEN": "2048"}
TOOL = {"type": "function", "function": {"name": "f"}}
OTHER = {"type": "function", "function": {"name": "g"}}


@dataclass
class Answers:
    """An engine that answers each path with what it is given, and keeps what it read."""

    answers: Mapping[str, tuple[int, Any]] = field(default_factory=dict)
    read: list[Any] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = (await receive()).get("body", b"")
        self.read.append(json.loads(text) if text else None)
        status, body = self.answers.get(scope["path"], (200, {}))
        content = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content[:9], "more_body": True})
        await send({"type": "http.response.body", "body": content[9:]})


GAPS = BEHIND["llamacpp"].quirks


def ask(
    engine: Answers, path: str, body: Any = None, *, quirks: EngineQuirks = NO_QUIRKS, **settings: str
) -> tuple[int, Any]:
    """The status and the document that a client gets."""
    app = DenyByDefault(engine, KEYS | SERVED | settings, quirks=quirks)
    scope = request(path, "GET" if body is None else "POST", bearer(FIRST))
    start, *rest = talk(app, scope, [json.dumps(body).encode()] if body is not None else [])
    whole = b"".join(message.get("body", b"") for message in rest)
    lengths = [value for name, value in start["headers"] if name == b"content-length"]
    assert lengths == [str(len(whole)).encode()]
    return start["status"], json.loads(whole)


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    status, document = answer
    return status, document["error"]["code"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize(
    ("most", "passed_on"), [(32000, 2048), (2049, 2048), (2048, 2048), (1, 1), (-1, -1), ("9999", "9999")]
)
def test_a_most_beyond_the_context_becomes_the_context(name: str, most: Any, passed_on: Any) -> None:
    engine = Answers()
    ask(engine, CHAT, {"messages": ASKED, name: most})
    assert engine.read[-1][name] == passed_on
    ask(engine, CHAT, {"messages": ASKED, name: most}, MAX_MODEL_LEN="")
    assert engine.read[-1][name] == most


def test_tools_need_a_parser_or_a_template_that_has_them() -> None:
    offered = {"messages": ASKED, "tools": [TOOL]}
    status, document = ask(Answers(), CHAT, offered)
    assert (status, document["error"]["code"]) == (400, "tools_not_supported")
    assert "TOOL_CALL_PARSER" in document["error"]["message"]
    assert ask(Answers(), CHAT, offered, TOOL_CALL_PARSER="qwen3_coder")[0] == 200
    assert ask(Answers(), CHAT, offered, EXTRA_ARGS="--tool-call-parser=qwen3_coder")[0] == 200
    harmless: dict[str, Any]
    for harmless in ({"tools": []}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": [{"type": "web_search"}]}):
        assert ask(Answers(), CHAT, {"messages": ASKED, **harmless})[0] == 200
    assert ask(Answers(), MESSAGES, {"messages": ASKED, "tools": [{}], "tool_choice": {"type": "none"}})[0] == 200


def props(**caps: Any) -> Answers:
    """llama.cpp with a model that can do no more than this."""
    reads = {"vision": caps.get("images", True), "audio": caps.get("sounds", False)}
    return Answers(
        {"/props": (200, {"modalities": reads, "chat_template_caps": {"supports_tools": caps.get("tools")}})}
    )


def test_the_model_says_what_it_can_do_where_the_engine_shows_it() -> None:
    offered = {"messages": ASKED, "tools": [TOOL]}
    image = said({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{drawn('PNG')}"}})
    sound = said({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}})
    assert ask(props(tools=True), CHAT, offered, quirks=GAPS)[0] == 200
    assert code(ask(props(tools=False), CHAT, offered, quirks=GAPS)) == (400, "tools_not_supported")
    assert ask(props(), CHAT, image, quirks=GAPS)[0] == 200
    assert code(ask(props(images=False), CHAT, image, quirks=GAPS)) == (400, "images_not_supported")
    assert code(ask(props(), CHAT, sound, quirks=GAPS)) == (400, "audio_not_supported")
    # a server without the route, such as an older fork, decides itself
    assert ask(Answers({"/props": (404, {})}), CHAT, offered, quirks=GAPS)[0] == 200
    for odd in (b"", b"[]", b'{"modalities": 1, "chat_template_caps": []}'):
        assert abilities_of(odd) == contract.Abilities()


def test_the_engine_says_once_what_its_model_can_do() -> None:
    engine = props(tools=True)
    app = DenyByDefault(engine, KEYS | SERVED, quirks=GAPS)
    body = json.dumps({"messages": ASKED, "tools": [TOOL]}).encode()
    for _ in range(3):
        talk(app, request(CHAT, "POST", bearer(FIRST)), [body])
    assert len(engine.read) == 4


@pytest.mark.parametrize(
    ("path", "tools", "choice", "passed_on"),
    [
        (CHAT, [TOOL, OTHER], {"type": "function", "function": {"name": "f"}}, "required"),
        (RESPONSES, [{"type": "function", "name": "f"}, OTHER], {"type": "function", "name": "f"}, "required"),
        (MESSAGES, [{"name": "f"}, {"name": "g"}], {"type": "tool", "name": "f"}, {"type": "any"}),
    ],
)
def test_a_tool_that_must_be_called_is_the_only_one_where_the_engine_ignores_its_name(
    path: str, tools: list[Any], choice: Any, passed_on: Any
) -> None:
    engine = props(tools=True)
    ask(engine, path, {"messages": ASKED, "tools": tools, "tool_choice": choice}, quirks=GAPS)
    assert (engine.read[-1]["tools"], engine.read[-1]["tool_choice"]) == (tools[:1], passed_on)
    for left in ("auto", "required", {"type": "function", "name": "none of them"}, 1):
        ask(engine, path, {"messages": ASKED, "tools": tools, "tool_choice": left}, quirks=GAPS)
        assert (engine.read[-1]["tools"], engine.read[-1]["tool_choice"]) == (tools, left)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": ["a", "b"]}, "prompt_not_supported"),
        ({"prompt": [1, 2]}, "prompt_not_supported"),
        ({"prompt": "a", "suffix": "b"}, "suffix_not_supported"),
        ({"prompt": "a", "echo": True}, "echo_not_supported"),
        ({"prompt": "a", "echo": False, "suffix": None}, ""),
    ],
)
def test_an_engine_with_one_prompt_ignores_nothing(body: dict[str, Any], expected: str) -> None:
    assert ask(Answers(), COMPLETIONS, body)[0] == 200
    answered = ask(Answers(), COMPLETIONS, body, quirks=GAPS)
    assert code(answered) == (400, expected) if expected else answered[0] == 200


def test_another_model_is_refused_where_the_engine_would_answer() -> None:
    for path in (CHAT, "/chat/completions", COMPLETIONS, RESPONSES, MESSAGES):
        assert code(ask(Answers(), path, {"model": "gpt-4"}, quirks=GAPS)) == (404, "model_not_found")
        for right in ({"model": "small"}, {"model": ""}, {}):
            assert ask(Answers(), path, right, quirks=GAPS)[0] == 200
        assert ask(Answers(), path, {"model": "gpt-4"})[0] == 200
    # the engine's own API
    assert ask(Answers(), "/completion", {"model": "gpt-4", "prompt": [1]}, quirks=GAPS)[0] == 200


def test_a_schema_of_responses_is_repeated_where_the_engine_reads_it() -> None:
    form = {"type": "json_schema", "name": "c", "schema": SCHEMA, "strict": True}
    engine = Answers()
    ask(engine, RESPONSES, {"input": "a", "text": {"format": form}}, quirks=GAPS)
    assert engine.read[-1]["response_format"]["json_schema"] == {"name": "c", "schema": SCHEMA, "strict": True}
    for unchanged in ({"text": {"format": {"type": "text"}}}, {"text": "a"}, {}):
        ask(engine, RESPONSES, {"input": "a", **unchanged}, quirks=GAPS)
        assert engine.read[-1] == {"input": "a", **unchanged}
    ask(engine, RESPONSES, {"input": "a", "text": {"format": form}})
    assert "response_format" not in engine.read[-1]


@pytest.mark.parametrize(("effort", "kept"), [("low", False), ("high", False), ("none", True)])
def test_reasoning_that_nothing_separates_is_not_switched_on(effort: str, kept: bool) -> None:
    engine = Answers()
    ask(engine, CHAT, {"messages": ASKED, "reasoning_effort": effort})
    assert ("reasoning_effort" in engine.read[-1]) is kept
    ask(engine, CHAT, {"messages": ASKED, "reasoning_effort": effort}, REASONING_PARSER="qwen3")
    assert "reasoning_effort" in engine.read[-1]


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "PNG"])
def test_a_picture_reaches_the_engine_in_a_format_that_it_decodes(kind: str) -> None:
    engine = props()
    source = {"type": "base64", "media_type": f"image/{kind.lower()}", "data": drawn(kind)}
    ask(engine, MESSAGES, said({"type": "image", "source": source}), quirks=GAPS)
    (part,) = engine.read[-1]["messages"][0]["content"]
    assert part["source"]["media_type"] == "image/png"
    assert part["source"]["data"].startswith("iVBORw0KGgo")
    ask(
        engine,
        RESPONSES,
        {"input": [{"content": [{"type": "input_image", "image_url": f"data:image/x;base64,{drawn(kind)}"}]}]},
        quirks=GAPS,
    )
    (part,) = engine.read[-1]["input"][0]["content"]
    assert "iVBORw0KGgo" in part["image_url"]
    ask(engine, "/completion", {"prompt": {"multimodal_data": [drawn(kind)]}}, quirks=GAPS)
    assert engine.read[-1]["prompt"]["multimodal_data"][0].startswith("iVBORw0KGgo")


def test_an_error_has_the_form_of_the_routes_api() -> None:
    fails = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}
    engine = Answers(dict.fromkeys((CHAT, MESSAGES, "/v1/messages/count_tokens"), (400, fails)))
    assert ask(engine, CHAT, {}) == (400, fails)
    for path in (MESSAGES, "/v1/messages/count_tokens"):
        status, document = ask(engine, path, {})
        assert (status, document["type"], document["error"]["type"]) == (400, "error", "invalid_request_error")
        assert (document["error"]["message"], document["error"]["code"]) == ("too long", "exceed_context_size_error")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (404, {"error": {"message": "File Not Found"}}),
        (405, {"detail": "Method Not Allowed"}),
        (501, {"error": {"message": "Start it with `--embeddings`"}}),
    ],
)
def test_a_path_that_is_no_route_is_one_answer(status: int, body: Any) -> None:
    answered = ask(Answers({"/v1/embeddings": (status, body)}), "/v1/embeddings", {})
    assert code(answered) == (404, "not_found")
    assert "`POST /v1/embeddings`" in answered[1]["error"]["message"]


def test_an_error_that_says_something_stays() -> None:
    unknown = {"error": {"message": "The model `x` does not exist.", "code": 404}}
    assert ask(Answers({CHAT: (404, unknown)}), CHAT, {}) == (404, unknown)
    long = {"error": {"message": "x" * LONGEST_ERROR}}
    assert ask(Answers({MESSAGES: (400, long)}), MESSAGES, {}) == (400, long)
    odd: Any
    for odd in ([], "text", {"error": "text"}, {"error": {"message": 1}}):
        assert ask(Answers({CHAT: (500, odd)}), CHAT, {}, quirks=GAPS) == (500, odd)


@pytest.mark.parametrize(
    ("path", "reader"),
    [
        (CHAT, f"{CHAT}/input_tokens"),
        (RESPONSES, f"{RESPONSES}/input_tokens"),
        (MESSAGES, f"{MESSAGES}/count_tokens"),
    ],
)
def test_an_engine_that_refuses_before_it_generates_is_right(path: str, reader: str) -> None:
    for text in ("Unknown reasoning format: nope", "failed to decode", "out of memory"):
        failed = (500, {"error": {"message": text}})
        refusing, failing = Answers({path: failed, reader: failed}), Answers({path: failed})
        status, said = ask(refusing, path, {"max_tokens": 1}, quirks=GAPS)
        assert (status, said["error"]["message"]) == (400, text)
        assert refusing.read[0] == refusing.read[1]
        assert ask(failing, path, {"max_tokens": 1}, quirks=GAPS)[0] == 500
        # an engine without such a route says itself what it means
        assert ask(refusing, path, {"max_tokens": 1})[0] == 500


def test_a_prompt_that_is_too_long_says_how_long_it_is() -> None:
    words = "context length is 2048 tokens. However, your prompt contains at least 2049 input tokens"
    refused = (400, {"error": {"message": words}})
    for path, body in (
        (CHAT, {"messages": ASKED}),
        (COMPLETIONS, {"prompt": "a"}),
        (RESPONSES, {"input": "a", "instructions": "b"}),
        (MESSAGES, {"messages": ASKED, "system": "b"}),
    ):
        engine = Answers({path: refused, "/tokenize": (200, {"count": 6013})})
        status, said = ask(engine, path, body)
        assert (status, said["error"]["message"]) == (400, words.replace("at least 2049", "6013"))
        unknown = Answers({path: refused, "/tokenize": (400, {})})
        assert ask(unknown, path, body)[1]["error"]["message"] == words


def test_what_a_system_message_holds_beside_text_stays_in_its_place() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{drawn('PNG')}"}}
    messages = [*ASKED, {"role": "system", "content": [image]}]
    engine = Answers()
    assert ask(engine, CHAT, {"messages": messages})[0] == 200
    assert engine.read[-1]["messages"] == messages


def test_system_messages_are_joined_in_their_order() -> None:
    engine = Answers()
    late = [
        {"role": "system", "content": "a"},
        *ASKED,
        {"role": "developer", "content": [{"text": "b"}, {"text": "c"}]},
    ]
    ask(engine, CHAT, {"messages": late})
    assert engine.read[-1]["messages"] == [{"role": "system", "content": "a\n\nbc"}, *ASKED]
    ask(engine, RESPONSES, {"input": late, "instructions": "first"})
    assert (engine.read[-1]["instructions"], engine.read[-1]["input"]) == ("first\n\na\n\nbc", ASKED)


def test_one_model_of_the_list_is_answered() -> None:
    engine = Answers({"/v1/models": (200, {"data": [{"id": "org/tiny", "object": "model"}]})})
    for spelled in ("org/tiny", "org%2Ftiny"):
        assert ask(engine, f"/v1/models/{spelled}") == (200, {"id": "org/tiny", "object": "model"})
    assert code(ask(engine, "/v1/models/other")) == (404, "model_not_found")
    starting = Answers({"/v1/models": (503, {}), "/v1/models/tiny": (503, {"error": {"message": "loading"}})})
    assert ask(starting, "/v1/models/tiny")[0] == 503


def test_the_page_lists_every_code() -> None:
    raised = set(re.findall(r'"([a-z]+_not_[a-z]+|not_found)"', Path(contract.__file__).read_text()))
    named = set(re.findall(r"`([a-z_]+)`", PAGE.read_text()))
    assert raised | {row.code for row in ROWS if row.code} <= named
