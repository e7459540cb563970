"""`ask` and `chat`: one question, or a conversation in the terminal."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import KeyFile, Served, Url
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput, DeployError

if TYPE_CHECKING:
    from types import FrameType

    from prompt_toolkit import PromptSession

    from dflash_deploy.client.talk import EncodedPicture, Message
    from dflash_deploy.operations.ask import AskedEndpoint

Images = Annotated[
    list[str] | None, typer.Option("--image", "-i", metavar="FILE", help="A picture; - reads standard input.")
]
System = Annotated[str, typer.Option(help="System message.")]


@command(examples=('ask "What is the capital of France?"', 'ask "What is in this picture?" photo.jpg'))
def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORDS... [PICTURE]...", help="The question and pictures; without it, or as -, standard input."
        ),
    ] = None,
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
    *,
    directory: Path,
    as_json: bool,
) -> Report:
    """Ask the model one question, with pictures and files. The answer appears while it is generated.

    In a pipe only the answer goes to standard output. The last line has tokens/s and acceptance length.
    """
    from dflash_deploy.cli.answer import Writer, figures_line
    from dflash_deploy.cli.report import note
    from dflash_deploy.client.answers import EndpointError
    from dflash_deploy.client.talk import Talk, user_message
    from dflash_deploy.operations.ask import asked, failed, pictures_among, question_of, read_image, whole_answer

    question, pictures = pictures_among(words or ())
    text = question_of(question, file or ())
    images = [read_image(name) for name in (*pictures, *(image or ()))]
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


@command(examples=("chat", 'chat --system "Answer in one sentence."'), json=False)
def chat(
    system: System = "", url: Url = None, key_file: KeyFile = None, model: Served = "", *, directory: Path
) -> Report:
    """Talk with the model in the terminal. /help lists what can be typed; Ctrl-C ends an answer, Ctrl-D the chat."""
    from dflash_deploy.cli.report import note
    from dflash_deploy.operations.ask import asked

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("chat needs a terminal", hint="in a pipe: `dflash-deploy ask`")
    with asked(directory, url=url, key_file=key_file, model=model) as found:
        note(f"{found.endpoint.model} on {found.endpoint.url}; /help lists what can be typed, Ctrl-D ends")
        Conversation(found, system).run()
    return Report()


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Handle Ctrl-C so within the block."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_once(number: int, frame: FrameType | None) -> None:
    """End an answer at the first Ctrl-C; further ones would end the chat while it ends the answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@dataclass
class Conversation:
    """What was said so far, and what the next question takes along."""

    found: AskedEndpoint
    system: str = ""
    said: list[Message] = field(default_factory=list)
    images: list[EncodedPicture] = field(default_factory=list)
    shaded: bool = False
    last: str = ""

    def run(self) -> None:
        """Read questions and commands until Ctrl-D."""
        session = self._session()
        with _on_interrupt(signal.SIG_IGN):
            while self._turn(session):
                pass

    def _turn(self, session: PromptSession[str]) -> bool:
        """Read one line, and do what it says. Whether the conversation continues."""
        try:
            typed = session.prompt("> ").strip()
        except EOFError:
            return False
        except KeyboardInterrupt:
            # it clears what is typed
            return True
        name, _, rest = typed.partition(" ")
        try:
            if name in COMMANDS:
                _note(COMMANDS[name].does(self, rest.strip()))
            elif name.startswith("/") and name not in ENDINGS:
                raise BadInput(f"`{name}` is not known here", hint="/help lists what is")
            elif typed and name not in ENDINGS:
                self._answer(typed)
        except DeployError as problem:
            _note(f"error: {problem.message}\n  hint: {problem.hint}")
        return name not in ENDINGS

    def _session(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("f2")
        def _(event: KeyPressEvent) -> None:
            self.shaded = not self.shaded

        def toolbar() -> str:
            return self.bar(get_terminal_size().columns)

        return PromptSession(
            key_bindings=keys,
            bottom_toolbar=toolbar,
            completer=WordCompleter(list(COMMANDS), sentence=True),
            complete_while_typing=False,
            reserve_space_for_menu=0,
        )

    def bar(self, width: int) -> str:
        """The lines at the bottom, of at most that many columns: the figures of the last answer, and the keys."""
        images = f"{len(self.images)} pictures  " if self.images else ""
        keys = f"{images}F2: steps {'shaded' if self.shaded else 'not shaded'}  Alt-Enter: new line"
        return "\n".join(f" {line}" for part in (self.last, keys) for line in wrap(part, width - 2))

    def _answer(self, typed: str) -> None:
        """Ask, and write the answer. What Ctrl-C left of it stays in the conversation; a failed question does not."""
        from dflash_deploy.cli.answer import Writer, figures_line
        from dflash_deploy.client.answers import EndpointError
        from dflash_deploy.client.talk import Talk, user_message
        from dflash_deploy.operations.ask import failed

        told: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        question = user_message(typed, self.images)
        writer = Writer(self.found.redact, shaded=self.shaded)
        self.last = ""
        try:
            with _on_interrupt(_end_once):
                talk = Talk(self.found.endpoint, [*told, *self.said, question])
                writer.write_all(talk.chunks())
                self.last = figures_line(talk.figures(), self.found.plain)
        except EndpointError as problem:
            raise failed(problem, self.found.redact) from None
        except KeyboardInterrupt:
            _note("(ended)")
        self.said += [question, {"role": "assistant", "content": writer.answer}]
        self.images.clear()

    def add_image(self, name: str) -> str:
        """Take a picture along with the next question."""
        from dflash_deploy.operations.ask import STDIN, read_image

        if name in {"", STDIN}:
            raise BadInput("no picture is named", hint="/image photo.jpg")
        self.images.append(read_image(str(_path_of(name))))
        return "goes along with the next question"

    def tell(self, text: str) -> str:
        """Replace the system message."""
        self.system = text
        return "this is the system message now" if text else "the system message is removed"

    def reset(self, _: str) -> str:
        """Forget what was said."""
        self.said.clear()
        self.images.clear()
        return "the conversation is empty"

    def save(self, name: str) -> str:
        """Write the conversation as Markdown."""
        from dflash_deploy.cli.shown import visible
        from dflash_deploy.deployment.files import write_output

        if not name:
            raise BadInput("no file is named", hint="/save talk.md")
        parts = [f"**{one['role']}**\n\n{_text_of(one)}\n" for one in self.said]
        write_output(_path_of(name), visible("\n".join(parts)))
        return f"written: {name}"

    def help(self, _: str) -> str:
        """What can be typed."""
        width = max(map(len, COMMANDS)) + 8
        lines = [f"{f'{name} {one.takes}':{width}}{one.about}" for name, one in COMMANDS.items()]
        return "\n".join(
            [
                *lines,
                "/quit or Ctrl-D ends the chat",
                "Alt-Enter begins a new line, F2 shades the tokens of each step, Ctrl-C ends an answer",
            ]
        )


@dataclass(frozen=True)
class ChatCommand:
    """What a word with a slash does: it is given the rest of the line, and returns what to show."""

    takes: str
    about: str
    does: Callable[[Conversation, str], str]


COMMANDS: Mapping[str, ChatCommand] = {
    "/image": ChatCommand("FILE", "takes a picture along with the next question", Conversation.add_image),
    "/system": ChatCommand("TEXT", "replaces the system message; without a text, removes it", Conversation.tell),
    "/reset": ChatCommand("", "forgets what was said", Conversation.reset),
    "/save": ChatCommand("FILE", "writes the conversation as Markdown", Conversation.save),
    "/help": ChatCommand("", "lists this", Conversation.help),
}


ENDINGS = ("/quit", "/exit", "/bye")  # what ends a chat, here and in other programs


def _path_of(typed: str) -> Path:
    """A path as it is typed, or as a terminal writes a file that is dropped on it: in quotes, or with backslashes."""
    path = Path(typed).expanduser()
    if path.exists():
        return path
    with suppress(ValueError):
        path = Path(" ".join(shlex.split(typed))).expanduser()
    return path


def _text_of(message: Message) -> str:
    """The text of a message, with a mark for each picture."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n\n".join(part.get("text", "(a picture)") for part in parts)


def _note(text: str) -> None:
    from dflash_deploy.cli.report import note

    note(text)
