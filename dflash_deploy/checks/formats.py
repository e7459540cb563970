"""Checks of structured answers: tool calls, reasoning content, JSON of a schema."""

from __future__ import annotations

import random

from dflash_deploy.checks.check import ROOM_TO_THINK, CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.intake.parse import parse_json
from dflash_deploy.serve.settings import Settings


@check("tools")
def tools(tested: EndpointUnderTest) -> CheckOutcome:
    """The model calls the tool that is offered, with the argument from the question."""
    city = random.SystemRandom().choice(("Lisbon", "Oslo", "Vienna", "Athens"))
    asked = f"the weather in {city}, with a tool get_weather(city)"
    if tested.calls_tools is False:
        raise CheckSkipped(asked, f"{Settings.tool_call_parser} is empty: the engine does not parse tool calls")
    tested.needs_general(asked)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "The weather of a city now", "parameters": parameters}
    try:
        answer = tested.endpoint.chat(
            f"What is the weather in {city} now? Use the tool.",
            max_tokens=tested.within(max(400, tested.room)),
            tools=[{"type": "function", "function": function}],
        )
    except EndpointError as problem:
        if tested.calls_tools is None and problem.status == 400 and "tool" in str(problem):
            raise CheckSkipped(asked, f"the engine does not parse tool calls: {problem}") from None
        raise
    got = "; ".join(f"{call.name}({call.arguments})" for call in answer.tool_calls) or f"no call; text: {answer.text}"
    parser = f"{Settings.tool_call_parser} does not match the model, or its chat template has no tools"
    hint = f"{parser}: tool calls are left in the text, or are not made"
    right = any(_calls(call.name, call.arguments, city) for call in answer.tool_calls)
    return CheckOutcome(right, asked, got, hint, of_model=True)


def _calls(name: str, arguments: str, city: str) -> bool:
    try:
        given = parse_json(arguments)
    except ValueError:
        return False
    return name == "get_weather" and isinstance(given, dict) and city.lower() in str(given.get("city")).lower()


@check("reasoning")
def reasoning(tested: EndpointUnderTest) -> CheckOutcome:
    """With thinking on, the reasoning content is separate from the answer."""
    ask = "How many legs do three spiders have together?"
    if tested.thinks is not True:
        parsed = tested.engine is None or tested.engine.knows(Settings.reasoning_parser)
        reason = f"{Settings.reasoning_parser} is empty: the reasoning would be part of the answer"
        if tested.thinks is None or not parsed:
            reason = "whether this model thinks is unknown" if parsed else "this model does not think"
        raise CheckSkipped(ask, reason)
    tested.needs_general(ask)
    switch = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = tested.endpoint.chat(ask, max_tokens=tested.within(ROOM_TO_THINK), **switch)
    got = f"{len(answer.reasoning)} characters of reasoning, then: {answer.text.strip()}"
    right = bool(answer.reasoning.strip()) and "24" in answer.text and "<think>" not in answer.text
    hint = f"{Settings.reasoning_parser} does not match the model, or max_tokens ended the answer"
    return CheckOutcome(right, ask, got, hint, of_model=True)


@check("json")
def schema(tested: EndpointUnderTest) -> CheckOutcome:
    """With a JSON schema, the answer is JSON of that schema, also with a drafter."""
    wanted = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    ask = "Is Paris the capital of France?"
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": wanted, "strict": True}}
    answer = tested.endpoint.chat(ask, max_tokens=tested.room, response_format=form)
    try:
        said = parse_json(answer.text)
    except ValueError:
        said = None
    fits = isinstance(said, dict) and said.keys() == {"answer", "sure"} and said["answer"] in ("yes", "no")
    right = (
        fits
        and isinstance(said["sure"], bool)
        and (said["answer"] == "yes" or tested.questions.unknown or bool(tested.questions.limits))
    )
    shape = "as JSON {answer: yes|no, sure: boolean}"
    return CheckOutcome(right, f"{ask} {shape}", answer.text, "the engine ignores response_format, or a proxy drops it")
