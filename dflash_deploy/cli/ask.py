"""`ask`: one question to the model, answered as it is written."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import HERE, Directory, Json, KeyFile
from dflash_deploy.cli.shown import Report

Images = Annotated[
    list[str] | None, typer.Option("--image", "-i", metavar="FILE", help="A picture; - reads standard input.")
]
System = Annotated[str, typer.Option(help="The system message, before the question.")]
Url = Annotated[str | None, typer.Option(help="Another endpoint, as http://host:port; no deployment is needed.")]
Served = Annotated[str, typer.Option(help="The served name to ask at --url; else the first one.")]


@command(examples=('ask "What is the capital of France?"', 'ask "What is in this picture?" --image photo.jpg'))
def ask(
    question: Annotated[str, typer.Argument(help="The question; without it, or as -, standard input.")] = "",
    directory: Directory = HERE,
    image: Images = None,
    file: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="FILE", help="A text to add; - reads standard input.")
    ] = None,
    system: System = "",
    no_thinking: Annotated[bool, typer.Option("--no-thinking", help="Answer at once, if the template can.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Longest answer in tokens.")] = None,
    url: Url = None,
    key_file: KeyFile = None,
    model: Served = "",
    as_json: Json = False,
) -> Report:
    """Ask the model one question, with pictures and files. The answer appears while it is generated.

    In a pipe only the answer goes to standard output. The last line has tokens/s and acceptance length.
    """
    from dflash_deploy.cli.answer import Writer, figures_line
    from dflash_deploy.cli.report import note
    from dflash_deploy.client.answers import EndpointError
    from dflash_deploy.client.talk import Talk, user_message
    from dflash_deploy.operations.ask import asked, failed, question_of, read_image, whole_answer

    text = question_of(question, file or ())
    images = [read_image(name) for name in image or ()]
    with asked(directory, url=url, key_file=key_file, model=model) as found:
        messages = [*([{"role": "system", "content": system}] if system else []), user_message(text, images)]
        thinking = False if no_thinking else None
        talk = Talk(found.endpoint, messages, max_tokens=max_tokens, thinking=thinking)
        try:
            if as_json:
                return Report(whole_answer(found, talk))
            Writer(found.redact).write_all(talk.chunks())
        except EndpointError as problem:
            raise failed(problem, found.redact) from None
        note(figures_line(talk.figures(), found.plain))
        return Report()
