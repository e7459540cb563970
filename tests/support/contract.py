"""Requests that engines answer differently, and what the endpoint answers instead, on each engine.

The rows are what `docs/reference/endpoint.md` promises. Seen without the gateway: vLLM 0.32.0 and llama.cpp b11549.
"""

import base64
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from PIL import Image

STRICT = Path(__file__).parent / "strict.jinja"
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
CACHED = {"cache_control": {"type": "ephemeral"}}
PDF = base64.b64encode(b"%PDF-1.4").decode()
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def drawn(kind: str) -> str:
    """A green picture in base64."""
    written = io.BytesIO()
    Image.new("RGB", (64, 64), (0, 255, 0)).save(written, kind)
    return base64.b64encode(written.getvalue()).decode()


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    """A message with these parts."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def by_url(url: str) -> dict[str, Any]:
    """A part that is the image at an address."""
    return {"type": "image_url", "image_url": {"url": url}}


def shown(kind: str, labelled: str = "") -> dict[str, Any]:
    """A question about a picture of that format, as one of the same or of another format."""
    address = f"data:image/{(labelled or kind).lower()};base64,{drawn(kind)}"
    return said({"type": "text", "text": "What colour is this?"}, by_url(address))


def anthropics(source: dict[str, Any]) -> dict[str, Any]:
    """A question about a picture, as Anthropic's clients send it."""
    return said({"type": "text", "text": "What colour is this?"}, {"type": "image", "source": source})


GREEN = {"type": "base64", "media_type": "image/png", "data": drawn("PNG")}
OF_RESPONSES = [
    {"type": "input_text", "text": "What colour is this?"},
    {"type": "input_image", "image_url": f"data:image/png;base64,{GREEN['data']}", "detail": "auto"},
]
TOOLS = [{"type": "function", "function": FUNCTION}]
LONG = [{"role": "user", "content": "word " * 5000}]
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
SVG = base64.b64encode(b'<svg xmlns="http://www.w3.org/2000/svg"/>').decode()
STANDARD = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be right."},
        *ASKED,
    ],
    "n": 2,
    "temperature": 0.7,
    "seed": 1,
    "stop": ["\n\n"],
    "logprobs": True,
    "top_logprobs": 5,
    "max_completion_tokens": 20,
}
IGNORED = {
    "messages": ASKED,
    "store": True,
    "metadata": {"a": "b"},
    "user": "me",
    "prediction": {"type": "content", "content": "Paris"},
    "web_search_options": {},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "of_a_later_api": 1,
}


@dataclass(frozen=True)
class Row:
    """A request to a route, and the status and the code of its answer; an empty code for one that is right.

    `llamacpp`: the status and the code on llama.cpp if they differ. `says`: words of an answer that is right;
    `refuses`: a pattern of a refusal.
    """

    name: str
    path: str
    body: dict[str, Any] | None
    status: int
    code: str = ""
    llamacpp: tuple[int, str] | None = None
    says: str = ""
    refuses: str = ""


def asked(**options: Any) -> dict[str, Any]:
    """The question with options."""
    return {"messages": ASKED} | options


NO_LISTS = (400, "prompt_not_supported")
NO_TOOLS, TOO_LARGE = "tools_not_supported", "grammar_too_large"
CITY = '{"city": "Paris"}'
ANSWERED = {"role": "assistant", "content": "Paris."}
SERVER_TOOLS = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
BY_SERVER = {"type": "tool", "name": "web_search"}
CUSTOM = {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}}
CUSTOM_CALL = [
    {"type": "custom_tool_call", "call_id": "1", "name": "c", "input": "a"},
    {"type": "custom_tool_call_output", "call_id": "1", "output": "b"},
]
THOUGHTS = [
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "abc"},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
]
BRIEF, RIGHT = {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be right."}

# System messages where templates such as Qwen3.5's refuse them: second, late, by another name, in each API.
SYSTEMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("several", CHAT, {"messages": [BRIEF, RIGHT, BRIEF, *ASKED]}),
    ("late", CHAT, {"messages": [*ASKED, ANSWERED, BRIEF, *ASKED]}),
    ("of the developer", CHAT, {"messages": [RIGHT, *ASKED]}),
    ("late, Anthropic", MESSAGES, {"messages": [*ASKED, ANSWERED, BRIEF, *ASKED], "system": "Be right."}),
    ("late, responses", RESPONSES, {"input": [RIGHT, *ASKED, ANSWERED, BRIEF, *ASKED], "instructions": "Be kind."}),
)

# What a template refuses that wants a user's message and known roles: the client's mistake, on each engine.
REFUSED_BY_TEMPLATE = (
    Row("no user", CHAT, {"messages": [BRIEF]}, 400),
    Row("an unknown role", CHAT, {"messages": [{"role": "critic", "content": "a"}, *ASKED]}, 400),
    Row("no user, Anthropic", MESSAGES, {"messages": [ANSWERED]}, 400),
)


def called(arguments: Any) -> dict[str, Any]:
    """A conversation with a tool call."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"messages": [*ASKED, turn, {"role": "tool", "tool_call_id": "1", "content": "sunny"}]}


def called_in_responses(arguments: Any) -> dict[str, Any]:
    """The same for /v1/responses."""
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    return {"input": [*ASKED, call, {"type": "function_call_output", "call_id": "1", "output": "sunny"}]}


def called_in_messages(arguments: Any) -> dict[str, Any]:
    """The same for /v1/messages."""
    call = {"type": "tool_use", "id": "1", "name": "f", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "sunny"}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"messages": [*ASKED, *turns]}


def with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The question whose answer must obey a schema."""
    return asked(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


def properties(count: int) -> dict[str, Any]:
    """A schema of an object with optional properties."""
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


ROWS = (
    Row("standard options", CHAT, STANDARD, 200),
    Row("more answers than sequences", CHAT, asked(n=9, temperature=1, max_tokens=1), 200, llamacpp=(400, "")),
    Row("a temperature of 5", CHAT, asked(temperature=5), 400, llamacpp=(200, "")),
    Row("top_logprobs of 50", CHAT, asked(logprobs=True, top_logprobs=50), 400, llamacpp=(200, "")),
    Row("five stops", CHAT, asked(stop=list("vwxyz")), 400, llamacpp=(200, "")),
    Row("no answer", CHAT, asked(max_tokens=0), 400, llamacpp=(200, "")),
    Row("an empty list of messages", CHAT, {"messages": []}, 400, llamacpp=(200, "")),
    Row("options of a stream", CHAT, asked(stream_options={"include_usage": True}), 400, llamacpp=(200, "")),
    Row("an empty list of tools", CHAT, asked(tools=[]), 400, llamacpp=(200, "")),
    Row("fields without effect", CHAT, IGNORED, 200, says="Paris"),
    Row("logit_bias", CHAT, asked(logit_bias={"5": 1}), 400, llamacpp=(200, "")),
    Row("min_p", CHAT, asked(min_p=0.1, temperature=1), 400, llamacpp=(200, "")),
    Row("effort", CHAT, asked(reasoning_effort="low"), 200),
    Row("one model", "/v1/models/tiny", None, 200),
    Row("one model that is not served", "/v1/models/gpt-4", None, 404, "model_not_found"),
    Row("a chat with another model", CHAT, asked(model="gpt-4"), 404, "", llamacpp=(404, "model_not_found")),
    Row("another method", CHAT, None, 404, "not_found"),
    *(
        Row(f"no route: {path}", path, body, 404, "not_found")
        for path, body in (
            ("/", None),
            ("/v1/nothing", None),
            ("/v1/files", None),
            ("/api/chat", {}),
            *((f"/v1/{name}", {"input": "a"}) for name in ("embeddings", "rerank", "moderations")),
            *((f"/v1/{name}", {}) for name in ("audio/transcriptions", "audio/speech", "images/generations")),
        )
    ),
    Row("tools", CHAT, asked(tools=TOOLS), 400, "tools_not_supported"),
    Row("tools that must be called", CHAT, asked(tools=TOOLS, tool_choice="required"), 400, "tools_not_supported"),
    Row("tools that must not be called", CHAT, asked(tools=TOOLS, tool_choice="none"), 200),
    Row("tools of Anthropic", MESSAGES, asked(tools=[{"name": "f", "input_schema": {}}]), 400, "tools_not_supported"),
    Row(
        "tools of responses",
        RESPONSES,
        {"input": "a", "tools": [{"type": "function", **FUNCTION}]},
        400,
        "tools_not_supported",
    ),
    Row("a tool of OpenAI's servers", RESPONSES, {"input": "a", "tools": [{"type": "web_search"}]}, 200),
    Row("more tokens than the context has", CHAT, asked(max_tokens=32000), 200, says="Paris"),
    Row("more tokens, Anthropic", MESSAGES, asked(max_tokens=32000), 200, says="Paris"),
    Row("more tokens, responses", RESPONSES, {"input": ASKED, "max_output_tokens": 32000}, 200, says="Paris"),
    *(
        Row(f"a long prompt, {path}", path, body, 400, refuses="50[0-9][0-9]( input)? tokens.*2048|2048.*50[0-9][0-9]")
        for path, body in (
            (CHAT, {"messages": LONG}),
            (CHAT, {"messages": LONG, "stream": True}),
            (MESSAGES, {"messages": LONG}),
            (RESPONSES, {"input": LONG}),
            (COMPLETIONS, {"prompt": "word " * 5000}),
        )
    ),
    Row(
        "several prompts", COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 2}, 200, "", (400, "prompt_not_supported")
    ),
    Row("token ids", COMPLETIONS, {"prompt": [1, 2], "max_tokens": 2}, 200, "", NO_LISTS),
    Row("suffix", COMPLETIONS, {"prompt": "a", "suffix": "b"}, 400, "", (400, "suffix_not_supported")),
    Row("echo", COMPLETIONS, {"prompt": "a", "echo": True, "max_tokens": 2}, 200, "", (400, "echo_not_supported")),
    *(Row(f"systems: {name}", path, body, 200) for name, path, body in SYSTEMS),
    *(Row(f"a call whose arguments are {value!r}", CHAT, called(value), 200) for value in (CITY, {"a": 1}, "", None)),
    *(
        Row(f"a broken call: {value!r}", path, body(value), 400, "invalid_tool_call")
        for value in ("{", '{"a": "b" "c": 1}', '{"a": "b', 5)
        for path, body in ((CHAT, called), (RESPONSES, called_in_responses), (MESSAGES, called_in_messages))
    ),
    Row("a call of responses without arguments", RESPONSES, called_in_responses(""), 200),
    Row("a call of Anthropic whose input is a text", MESSAGES, called_in_messages(CITY), 200),
    Row("a tool of OpenAI's servers in a chat", CHAT, asked(tools=[{"type": "web_search"}], tool_choice="auto"), 200),
    Row("tools of Anthropic's servers", MESSAGES, asked(tools=SERVER_TOOLS, tool_choice=BY_SERVER), 200),
    Row("the grammar of a custom tool", RESPONSES, {"input": ASKED, "tools": [CUSTOM]}, 400, "grammar_not_supported"),
    Row("in the background", RESPONSES, {"input": ASKED, "background": True}, 400, "background_not_supported"),
    *(Row(f"reasoning: {one}", RESPONSES, {"input": [*ASKED, one, ANSWERED, *ASKED]}, 200) for one in THOUGHTS),
    Row("a call of a custom tool", RESPONSES, {"input": [*ASKED, *CUSTOM_CALL]}, 200),
    Row("a schema of 16,000 values", CHAT, with_schema({"enum": [f"v{n}" for n in range(16000)]}), 400, TOO_LARGE),
    Row("a schema of 500 optional properties", CHAT, with_schema(properties(500)), 400, TOO_LARGE),
    Row("a pattern of nested repetitions", CHAT, with_schema({"pattern": "((a{1,200}){1,200})"}), 400, TOO_LARGE),
    Row("xargs of another type", CHAT, asked(vllm_xargs={"kv_transfer_params": 5}), 400, "invalid_request_error"),
    Row("instructions", RESPONSES, {"input": ASKED, "instructions": "Be brief."}, 200),
    Row("an earlier response", RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, 404, "", (400, "")),
    Row("parts of a system prompt", MESSAGES, asked(system=[{"type": "text", "text": "Be brief.", **CACHED}]), 200),
    Row("tokens counted", f"{MESSAGES}/count_tokens", {"messages": ASKED}, 200, says="input_tokens"),
    Row("no messages", MESSAGES, {}, 400),
    *(
        Row(f"a PDF, {path}", path, body, 400, "document_not_supported")
        for path, body in (
            (CHAT, said({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}})),
            (MESSAGES, said({"type": "document", "source": {**GREEN, "media_type": "application/pdf", "data": PDF}})),
            (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": PDF}]}]}),
        )
    ),
    Row("a file of the machine", CHAT, said(by_url("file:///etc/passwd")), 400, "image_url_refused"),
    Row("an image of the network", CHAT, said(by_url("http://127.0.0.1:9/a.png")), 400, "image_url_refused"),
    Row(
        "an image of the network, Anthropic",
        MESSAGES,
        anthropics({"type": "url", "url": "https://127.0.0.1:9/a.png"}),
        400,
        "image_url_refused",
    ),
    Row(
        "an image without an object",
        CHAT,
        said({"type": "image_url", "image_url": "data:image/png;base64,AA=="}),
        400,
        "invalid_image",
    ),
    Row("a drawing", CHAT, said(by_url(f"data:image/svg+xml;base64,{SVG}")), 400, "invalid_image"),
    Row("a damaged image", CHAT, said(by_url("data:image/png;base64,!!")), 400, "invalid_image"),
    Row("a sound", CHAT, said(SOUND), 400, "", (400, "audio_not_supported")),
    *(
        Row(f"a picture, {kind}", CHAT, shown(kind), 200, says="green")
        for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "AVIF")
    ),
    Row("a JPEG that is labelled PNG", CHAT, shown("JPEG", "PNG"), 200, says="green"),
    Row("a picture of Anthropic", MESSAGES, anthropics(GREEN), 200, says="green"),
    Row("a picture of responses", RESPONSES, {"input": [{"role": "user", "content": OF_RESPONSES}]}, 200, says="green"),
)


# What SGLang answers otherwise. It reads these fields as llama.cpp does, and answers to any name of a model.
SGLANG: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(
        (
            *("a temperature of 5", "top_logprobs of 50", "five stops", "no answer", "options of a stream", "min_p"),
            *("an empty list of tools", "logit_bias", "suffix", "a chat with another model"),
        ),
        (200, ""),
    ),
    "an earlier response": (400, ""),
    # it has these routes, for other models
    "no route: /": (200, ""),
    **dict.fromkeys(
        (f"no route: {path}" for path in ("/api/chat", "/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions")),
        (400, ""),
    ),
}


def answer(row: Row, url: str, key: str) -> httpx.Response:
    """What an endpoint answers; `model` and, for Anthropic's route, `max_tokens` are added."""
    added = {"model": "tiny", **({"max_tokens": 20} if row.path == MESSAGES else {})}
    method, body = ("GET", None) if row.body is None else ("POST", added | row.body)
    return httpx.request(method, url + row.path, json=body, headers={"api-key": key}, timeout=300)


def problems(
    url: str,
    key: str,
    *,
    llamacpp: bool = False,
    rows: tuple[Row, ...] = ROWS,
    other: Mapping[str, tuple[int, str]] = MappingProxyType({}),
) -> list[str]:
    """The rows that an endpoint does not keep; none is the promise. `other`: rows with another status and code."""
    found = []
    for row in rows:
        status, code = row.llamacpp if llamacpp and row.llamacpp is not None else (row.status, row.code)
        status, code = other.get(row.name, (status, code))
        got = answer(row, url, key)
        said = got.json() if got.text[:1] == "{" else {}
        error = said.get("error") or {}
        if got.status_code != status or (code and error.get("code") != code):
            found.append(f"{row.name}: {got.status_code} {got.text[:200]}")
        elif status >= 400 and (said.get("type") == "error") != row.path.startswith(MESSAGES):
            found.append(f"{row.name}: not in the form of its API: {got.text[:200]}")
        elif status >= 400 and not re.search(row.refuses, got.text):
            found.append(f"{row.name}: without both numbers: {got.text[:200]}")
        elif status < 400 and row.says not in got.text:
            found.append(f"{row.name}: not answered: {got.text[:200]}")
    return found


# With STRICT: the tiny pair has not learned its words, so no row looks at an answer; it has tools, and wants messages.
STRICT_ROWS = (
    *(
        row
        for row in ROWS
        if row.path in {CHAT, MESSAGES, RESPONSES}
        and not row.says
        and row.code != NO_TOOLS
        and row.name != "an empty list of messages"
    ),
    *REFUSED_BY_TEMPLATE,
)


def obeys_a_schema_of_responses(url: str, key: str) -> bool:
    """Whether /v1/responses answers in the form that `text.format` names."""
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    row = Row("a schema", RESPONSES, {"input": ASKED, "max_output_tokens": 40, "text": {"format": form}}, 200)
    (text,) = (part["text"] for part in answer(row, url, key).json()["output"][-1]["content"])
    return bool(text.lstrip().startswith("{"))
