"""The events of one streamed chat completion."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_deploy.client.completion import SHOWN, EndpointError
from dflash_deploy.client.documents import ChatChunk
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import read_document


def read_events(lines: Iterator[str]) -> Iterator[ChatChunk | None]:
    """Yield each server-sent event, `None` for [DONE]. Raises Invalid, and EndpointError for an error of the engine."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data == "[DONE]":
            yield None
        elif line.startswith("data:"):
            event = read_document(data, ChatChunk)
            if event.error is not None:
                # an engine that dies during a stream cannot change the status any more
                raise EndpointError(f"the stream ended with an error: {str(event.error)[:SHOWN]}")
            if event.choices is None:
                raise Invalid("has an event without choices")
            yield event


def beginning_of(lines: Iterator[str]) -> str:
    """Return the first lines of a refusal."""
    said = ""
    for line in lines:
        said += f"{line}\n"
        if len(said) > SHOWN:
            break
    return said
