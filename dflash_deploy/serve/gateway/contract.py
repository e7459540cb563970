"""The same answer to the same request, whichever engine runs.

Engines differ in what they drop without a word, in what they refuse and in how they say it. This is the list of the
decisions; `docs/reference/endpoint.md` is its page. A request that an engine would answer wrongly is refused with the
setting that helps, or rewritten into one that it answers right. Errors have the form that the route's API defines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from dflash_deploy.serve.gateway.asgi import (
    ANTHROPIC,
    App,
    ErrorAnswer,
    Scope,
    Send,
    ask_inside,
    json_object,
)
from dflash_deploy.serve.gateway.body import ANSWER_TOKENS, Request, texts_of
from dflash_deploy.serve.gateway.grammars import GrammarLimits
from dflash_deploy.serve.settings import Settings

MODELS = "/v1/models"
CHATS, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = (ANTHROPIC, f"{ANTHROPIC}/count_tokens")

# The routes of applications, whose requests are checked here.
GENERATING = frozenset({CHATS, COMPLETIONS, RESPONSES, *MESSAGES})

# llama.cpp answers these too. Its /completions is another API than /v1/completions.
_ALIASES: Mapping[str, str] = {"/chat/completions": CHATS, "/responses": RESPONSES}

# Types of a part that is a file, in the APIs of Anthropic and OpenAI. No engine reads one.
DOCUMENTS = frozenset({"document", "file", "input_file"})

_PROPS, _TOKENIZE = "/props", "/tokenize"

# vLLM's words for a prompt that it cut before it counted its tokens (0.32 and 0.33, renderers/params.py).
_CUT_SHORT = re.compile(r"at least \d+(?= input tokens)")
CHARACTERS_PER_TOKEN = 16  # more than any text has on average; English has 4, indented code up to 8


@dataclass(frozen=True)
class EngineQuirks:
    """Where an engine falls short of the endpoint's contract, so that the gateway fills in.

    `pictures`: the formats that it decodes, as Pillow names them; empty: all of `media.FORMATS`.
    `describes_model`: /props says whether its model reads images and sounds and whether its template has tools;
    without it, TOOL_CALL_PARSER decides about tools. `any_model`: it answers for any model name.
    `one_prompt`: /v1/completions takes one text, without `echo` and `suffix`. `schema_of_chats`: /v1/responses obeys
    `response_format` but ignores `text.format`. `any_tool`: the name in a `tool_choice` is ignored.
    `readers`: for routes whose mistakes it answers with 500, a route that reads the same request and does not generate.
    """

    pictures: frozenset[str] = frozenset()
    describes_model: bool = False
    any_model: bool = False
    one_prompt: bool = False
    schema_of_chats: bool = False
    any_tool: bool = False
    readers: Mapping[str, str] = field(default_factory=dict)


NO_QUIRKS = EngineQuirks()


@dataclass(frozen=True)
class Abilities:
    """What the served model can do, as far as the gateway knows. Tools: `False` if the engine would drop them."""

    tools: bool = True
    images: bool = True
    sounds: bool = True


class Contract:
    """Checks and rewrites the requests of applications."""

    def __init__(self, app: App, environment: Mapping[str, str], quirks: EngineQuirks, authorization: bytes) -> None:
        """`authorization` is the header that opens the engine. Raises Refused for a setting that is not valid."""
        self._app = app
        self._quirks = quirks
        self._authorization = authorization
        self._names = Settings.served_model_name.read(environment)
        self._context = Settings.max_model_len.read(environment)
        self._grammars = GrammarLimits(environment)
        extra = {word.split("=", 1)[0].replace("_", "-") for word in Settings.extra_args.read(environment)}
        self._separates = bool(Settings.reasoning_parser.read(environment)) or "--reasoning-parser" in extra
        parses = bool(Settings.tool_call_parser.read(environment)) or "--tool-call-parser" in extra
        self._abilities = None if quirks.describes_model else Abilities(tools=parses)

    async def check(self, scope: Scope, request: Request) -> None:
        """Raises ErrorAnswer for what the engine would answer wrongly; rewrites what it can answer right."""
        path, said = _ALIASES.get(scope["path"], scope["path"]), request.said
        self._check_length(request)
        if isinstance(said, dict):
            self._grammars.check(said)
        if path not in GENERATING or not isinstance(said, dict):
            return
        self._check_model(said)
        _check_fields(said)
        repaired = [_without_server_tools(said), _with_whole_calls(path, said), _with_one_system(path, said)]
        if path == RESPONSES:
            repaired += [_without_hidden_thoughts(said), self._quirks.schema_of_chats and _with_plain_items(said)]
        parts = list(_parts(said.get("input" if path == RESPONSES else "messages")))
        _check_parts(parts)
        kinds, tools = {str(part.get("type")) for part in parts}, _offers_tools(said)
        if tools or not kinds.isdisjoint(_SOUNDS | _IMAGES):
            can, by_template = await self._known_abilities(scope), self._quirks.describes_model
            _check_abilities(can, kinds, tools=tools, by_template=by_template)
        if path == COMPLETIONS and self._quirks.one_prompt:
            _check_prompt(said)
        changed = self._cap(said) or any(repaired)
        if path == RESPONSES and self._quirks.schema_of_chats:
            changed = _with_schema(said) or changed
        if self._quirks.any_tool:
            changed = _with_named_tool(said) or changed
        if not self._quirks.describes_model and not self._separates:
            changed = _without_effort(said) or changed
        if changed:
            request.rewrite()

    async def answers(self, scope: Scope, send: Send) -> bool:
        """Answer a request that no engine answers: one model of the list. Returns whether it was one."""
        name = scope["path"].removeprefix(f"{MODELS}/")
        if scope["method"] != "GET" or name == scope["path"] or not name:
            return False
        status, body = await ask_inside(self._app, scope, MODELS, self._authorization)
        if status != HTTPStatus.OK:
            return False
        found = [one for one in _dicts(json_object(body).get("data")) if one.get("id") == unquote(name)]
        if not found:
            raise self._unknown_model(name)
        content = json.dumps(found[0]).encode()
        length = (b"content-length", str(len(content)).encode())
        headers = [(b"content-type", b"application/json"), length]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        return True

    async def explained(self, scope: Scope, request: Request, status: int, said: str) -> tuple[int, str]:
        """The status and the text of an engine's error: which of both is at fault, and both numbers of a long prompt.

        An engine refuses a request before it generates, or fails itself later. What a route without generation
        refuses too is the client's mistake; clients repeat a request that was answered with 500.
        """
        path = str(_ALIASES.get(scope["path"], scope["path"]))
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and (reader := self._quirks.readers.get(path)):
            refused, _ = await ask_inside(self._app, scope, reader, self._authorization, request.body)
            if refused in {HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR}:
                return int(HTTPStatus.BAD_REQUEST), said
        if status == HTTPStatus.BAD_REQUEST and _CUT_SHORT.search(said) and isinstance(request.said, dict):
            asked = json.dumps(_countable(path, request.said)).encode()
            counted, body = await ask_inside(self._app, scope, _TOKENIZE, self._authorization, asked)
            count = json_object(body).get("count")
            if counted == HTTPStatus.OK and type(count) is int:
                said = _CUT_SHORT.sub(str(count), said)
        return status, said

    def _check_length(self, request: Request) -> None:
        """Raises ErrorAnswer for a text that cannot fit: to count its tokens, an engine keeps all others waiting."""
        if self._context is not None and (length := request.longest_text) > self._context * CHARACTERS_PER_TOKEN:
            said = f"the text has {length} characters, which cannot fit the context of {self._context} tokens"
            raise ErrorAnswer(400, said, "context_length_exceeded")

    def _check_model(self, said: dict[str, Any]) -> None:
        name = said.get("model")
        if self._quirks.any_model and self._names and isinstance(name, str) and name and name not in self._names:
            raise self._unknown_model(name)

    def _unknown_model(self, name: str) -> ErrorAnswer:
        served = ", ".join(f"`{one}`" for one in self._names) or f"what `GET {MODELS}` lists"
        return ErrorAnswer(404, f"the model `{name[:80]}` does not exist here: use {served}", "model_not_found")

    async def _known_abilities(self, scope: Scope) -> Abilities:
        if self._abilities is None:
            status, body = await ask_inside(self._app, scope, _PROPS, self._authorization)
            if status != HTTPStatus.OK:
                return Abilities()
            self._abilities = abilities_of(body)
        return self._abilities

    def _cap(self, said: dict[str, Any]) -> bool:
        """Lower a most of tokens beyond the context to the context, which ends the answer in any case."""
        most = self._context
        above = [
            name for name in ANSWER_TOKENS if type(said.get(name)) is int and most is not None and said[name] > most
        ]
        said.update(dict.fromkeys(above, most))
        return bool(above)


def abilities_of(props: bytes) -> Abilities:
    """What a model can do, from llama.cpp's /props; all of it as far as that says nothing."""
    said = json_object(props)
    reads, template = said.get("modalities"), said.get("chat_template_caps")
    reads = reads if isinstance(reads, dict) else {}
    template = template if isinstance(template, dict) else {}
    return Abilities(
        tools=template.get("supports_tools") is not False,
        images=reads.get("vision") is not False,
        sounds=reads.get("audio") is not False,
    )


_SOUNDS = frozenset({"input_audio", "audio_url"})
_IMAGES = frozenset({"image_url", "input_image", "image"})


def _parts(messages: object) -> Iterator[dict[str, Any]]:
    """The parts of all messages, and the parts inside results of tools."""
    waiting = [message.get("content") for message in _dicts(messages)]
    for content in waiting:
        for part in _dicts(content):
            yield part
            waiting.append(part.get("content"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _check_parts(parts: list[dict[str, Any]]) -> None:
    for part in parts:
        if part.get("type") in DOCUMENTS:
            said = "no engine reads documents such as PDFs: send their text, or their pages as images"
            raise ErrorAnswer(400, said, "document_not_supported")
        if part.get("type") == "image_url" and isinstance(part.get("image_url"), str):
            said = '`image_url` is an object: {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
            raise ErrorAnswer(400, said, "invalid_image")


_OF_CLIENTS = frozenset({None, "function", "custom"})  # types of tools that the client runs


def _offers_tools(said: dict[str, Any]) -> bool:
    """Whether the model may call tools of the client; tools of OpenAI's servers, such as web_search, are not meant."""
    own = [tool for tool in _dicts(said.get("tools")) if tool.get("type") in _OF_CLIENTS]
    choice = said.get("tool_choice")
    return bool(own) and choice != "none" and not (isinstance(choice, dict) and choice.get("type") == "none")


def _check_abilities(can: Abilities, kinds: set[str], *, tools: bool, by_template: bool) -> None:
    """Raises ErrorAnswer if a request has kinds of parts, or tools, that the model cannot use."""
    if tools and not can.tools:
        why = (
            "this model's chat template has none: choose a model with tools"
            if by_template
            else f"set {Settings.tool_call_parser} in .env to the parser of this model, and run `dflash-deploy up`"
        )
        raise ErrorAnswer(400, f"tool calls are off: {why}", "tools_not_supported")
    if kinds & _IMAGES and not can.images:
        said = f"this model reads no images, or {Settings.mmproj_file} in .env is empty"
        raise ErrorAnswer(400, said, "images_not_supported")
    if kinds & _SOUNDS and not can.sounds:
        raise ErrorAnswer(400, "this model reads no sounds", "audio_not_supported")


def _check_prompt(said: dict[str, Any]) -> None:
    if not isinstance(said.get("prompt", ""), str):
        raise ErrorAnswer(
            400, "`prompt` must be one text: this engine takes no lists and no token ids", "prompt_not_supported"
        )
    for name in ("suffix", "echo"):
        if said.get(name):
            raise ErrorAnswer(400, f"this engine does not support `{name}`", f"{name}_not_supported")


_OBJECTS = ("structured_outputs", "vllm_xargs")  # vLLM answers other values, or those inside, with 500


def _check_fields(said: dict[str, Any]) -> None:
    inner = said.get("vllm_xargs")
    fields = {name: said.get(name) for name in _OBJECTS}
    fields["kv_transfer_params"] = inner.get("kv_transfer_params") if isinstance(inner, dict) else None
    custom = [tool for tool in _dicts(said.get("tools")) if tool.get("type") == "custom"]
    for name, value in fields.items():
        if value is not None and not isinstance(value, dict):
            raise ErrorAnswer(400, f"`{name}` must be an object", "invalid_request_error")
    if any(isinstance(tool.get("format"), dict) and tool["format"].get("type") == "grammar" for tool in custom):
        raise ErrorAnswer(
            400, "no engine obeys the grammar of a custom tool: leave out `format`", "grammar_not_supported"
        )
    if said.get("background"):
        raise ErrorAnswer(400, "the endpoint keeps no answers: leave out `background`", "background_not_supported")


def _without_server_tools(said: dict[str, Any]) -> bool:
    """Drop tools that servers of OpenAI and Anthropic run, such as web_search: no engine has them."""
    offered = said.get("tools")
    if not isinstance(offered, list):
        return False
    kept = [tool for tool in offered if not isinstance(tool, dict) or tool.get("type") in _OF_CLIENTS]
    if len(kept) == len(offered):
        return False
    name, choice = _tool_name(said.get("tool_choice")), said.get("tool_choice")
    if not kept:
        said.pop("tools")
    else:
        said["tools"] = kept
    dropped = isinstance(choice, dict) and (name is not None or choice.get("type") not in {"auto", "any", "none"})
    if not kept or (dropped and name not in map(_tool_name, kept)):
        said.pop("tool_choice", None)
    return True


def _with_whole_calls(path: str, said: dict[str, Any]) -> bool:
    """Give the calls of earlier turns the arguments that all engines read. Raises ErrorAnswer for broken ones.

    Clients send what a model wrote: nothing for no arguments, an object instead of its text, or a text that was cut.
    """
    changed = False
    for call, name in _calls(path, said):
        value = call.get(name)
        as_text = name == "arguments"
        if isinstance(value, str) and value.strip():
            try:
                parsed = json.loads(value)
            except (ValueError, RecursionError):
                raise _broken(call, value) from None
            if as_text:
                continue
            value = parsed
        elif value is None or value == "":
            value = {}
        elif isinstance(value, dict) and not as_text:
            continue
        if not isinstance(value, dict):
            raise _broken(call, json.dumps(value))
        call[name], changed = (json.dumps(value) if as_text else value), True
    return changed


def _calls(path: str, said: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The tool calls of a conversation, each with the field that holds its arguments."""
    if path == RESPONSES:
        yield from ((one, "arguments") for one in _dicts(said.get("input")) if one.get("type") == "function_call")
        return
    for message in _dicts(said.get("messages")):
        yield from ((one, "input") for one in _dicts(message.get("content")) if one.get("type") == "tool_use")
        for call in _dicts(message.get("tool_calls")):
            if isinstance(function := call.get("function"), dict):
                yield function, "arguments"


def _broken(call: dict[str, Any], value: str) -> ErrorAnswer:
    said = f"the arguments of the tool call `{str(call.get('name'))[:80]}` are not a JSON object: `{value[:80]}`"
    return ErrorAnswer(400, said, "invalid_tool_call")


def _without_hidden_thoughts(said: dict[str, Any]) -> bool:
    """Leave out the reasoning of earlier turns that is encrypted or only summarized: no engine can read it."""
    items, included = said.get("input"), said.get("include")
    changed = isinstance(included, list) and _ENCRYPTED in included
    if isinstance(included, list):
        said["include"] = [one for one in included if one != _ENCRYPTED]
    thoughts = [one for one in _dicts(items) if one.get("type") == "reasoning"]
    for one in thoughts:
        one.pop("encrypted_content", None)
    if isinstance(items, list):
        said["input"] = [one for one in items if one not in thoughts or one.get("content")]
    return changed or bool(thoughts)


_ENCRYPTED = "reasoning.encrypted_content"


def _with_plain_items(said: dict[str, Any]) -> bool:
    """Give items of /v1/responses the form that llama.cpp reads (b11549): answers in parts, calls as functions'."""
    changed = False
    for one in _dicts(said.get("input")):
        kind, content = one.get("type", "message"), one.get("content")
        if kind == "message" and one.get("role") == "assistant" and isinstance(content, str):
            one.update(type="message", content=[{"type": "output_text", "text": content}])
        elif kind == "custom_tool_call":
            one.update(type="function_call", arguments=json.dumps({"input": one.pop("input", "")}))
        elif kind == "custom_tool_call_output":
            one["type"] = "function_call_output"
        else:
            continue
        changed = True
    return changed


_SYSTEM = frozenset({"system", "developer"})


def _with_one_system(path: str, said: dict[str, Any]) -> bool:
    """Join the system and developer messages at the front: templates such as Qwen3.5's refuse them elsewhere."""
    field_name = "input" if path == RESPONSES else "messages"
    messages, apart = said.get(field_name), {RESPONSES: "instructions", **dict.fromkeys(MESSAGES, "system")}.get(path)
    if not isinstance(messages, list):
        return False
    systems = [one for one in messages if isinstance(one, dict) and one.get("role") in _SYSTEM]
    in_place = apart is None and len(systems) == 1 and systems[0].get("role") == "system" and messages[0] is systems[0]
    if not systems or in_place:
        return False
    contents = [one.get("content") for one in systems]
    if any("text" not in part for content in contents for part in _dicts(content)):
        return False
    if apart is not None and said.get(apart):
        contents.insert(0, said[apart])
    joined = _joined(contents)
    said[field_name] = [one for one in messages if not (isinstance(one, dict) and one.get("role") in _SYSTEM)]
    if apart is None:
        said[field_name].insert(0, {"role": "system", "content": joined})
    else:
        said[apart] = joined
    return True


def _joined(contents: list[Any]) -> str:
    """The texts of several contents, with an empty line between two of them."""
    texts = ("".join(texts_of(content)) for content in contents)
    return "\n\n".join(text for text in texts if text)


def _countable(path: str, said: dict[str, Any]) -> dict[str, Any]:
    """The request for the number of its tokens, as vLLM's /tokenize reads it."""
    if path == COMPLETIONS:
        return {name: said[name] for name in ("model", "prompt") if name in said}
    apart = [said[name] for name in ("system", "instructions") if said.get(name)]
    turns = said.get("input" if path == RESPONSES else "messages")
    turns = [{"role": "user", "content": turns}] if isinstance(turns, str) else _dicts(turns)
    told = [{"role": "system", "content": _joined(apart)}] if apart else []
    told += [{"role": one["role"], "content": _joined([one.get("content")])} for one in turns if "role" in one]
    return {"messages": told, **({"model": said["model"]} if "model" in said else {})}


def _with_schema(said: dict[str, Any]) -> bool:
    """Repeat the schema of /v1/responses where the engine reads it."""
    text = said.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or "response_format" in said:
        return False
    if form.get("type") == "json_schema":
        schema = {name: form[name] for name in ("name", "schema", "strict") if name in form}
        said["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        said["response_format"] = {"type": "json_object"}
    return "response_format" in said


def _with_named_tool(said: dict[str, Any]) -> bool:
    """Offer only the tool that must be called, and require a call: the name is ignored (llama.cpp b11549)."""
    name = _tool_name(said.get("tool_choice"))
    named = [tool for tool in _dicts(said.get("tools")) if name is not None and _tool_name(tool) == name]
    if not named:
        return False
    anthropics = said["tool_choice"].get("type") == "tool"
    said.update(tools=named, tool_choice={"type": "any"} if anthropics else "required")
    return True


def _tool_name(said: object) -> object:
    """The name in a tool or in a choice of one, in each API's form."""
    if not isinstance(said, dict):
        return None
    function = said.get("function")
    return function.get("name") if isinstance(function, dict) else said.get("name")


def _without_effort(said: dict[str, Any]) -> bool:
    """Without a parser for it, reasoning that this switches on would be part of the answer (vLLM 0.32 and 0.33)."""
    if said.get("reasoning_effort") in {None, "none"}:
        return False
    del said["reasoning_effort"]
    return True
