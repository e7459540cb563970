"""What the page looks like, in NiceGUI: the conversation, and a drawer with engine, figures and clients."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from nicegui import run, ui
from nicegui.events import UploadEventArguments

from dflash_deploy.client.talk import EncodedPicture
from dflash_deploy.errors import BadInput, DeployError
from dflash_deploy.features.page.conversation import MOST_IMAGES, Dialogue, Turn, preview
from dflash_deploy.features.page.facts import PageSource, Row
from dflash_deploy.features.page.guard import Application
from dflash_deploy.intake.files import shown
from dflash_deploy.operations.ask import LARGEST_IMAGE, picture
from dflash_deploy.operations.connect import Connections

TICK = 0.1  # seconds between two drawings of the answer that arrives
STYLE = """
body { --line: #d5dae0; --shade0: #cfeee3; --shade1: #dfe3fb; --asked: #eef1f4 }
.body--dark { --line: #3a424c; --shade0: #14503f; --shade1: #343c78; --asked: #2a3037 }
.bar { background: transparent; color: inherit; border-color: var(--line); backdrop-filter: blur(12px) }
.chat { width: 100%; max-width: 52rem; margin: 0 auto; padding: 0 4px; min-width: 0 }
.asked { background: var(--asked); border-radius: 12px; padding: 8px 12px; align-self: flex-end; max-width: 85% }
.asked, .steps, .thinking { white-space: pre-wrap; overflow-wrap: anywhere }
.answer { width: 100%; overflow-wrap: anywhere; line-height: 1.5 }
.answer pre, .code { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; padding: 8px; margin: 0 }
.answer h1, .answer h2, .answer h3 { font-size: 1.2rem; line-height: 1.4; margin: .6em 0 .3em; font-weight: 600 }
.answer table { border-collapse: collapse; display: block; overflow-x: auto }
.answer td, .answer th { border: 1px solid var(--line); padding: 2px 8px }
.code { font-size: 12px; width: 100%; max-height: 50vh; white-space: pre; color: inherit; background: transparent }
.step0 { background: var(--shade0) } .step1 { background: var(--shade1) }
.thinking, .figures { opacity: .75; font-size: .85rem }
.small { max-height: 120px; max-width: 160px; border-radius: 8px }
.facts { display: grid; grid-template-columns: auto 1fr; gap: 2px 12px; overflow-wrap: anywhere; width: 100% }
"""

PASTE_AND_DROP = """<script>
for (const kind of ["paste", "drop"]) document.addEventListener(kind, event => {
  const files = [...(event.clipboardData || event.dataTransfer).files];
  if (files.length) { event.preventDefault(); getElement(UPLOAD).$refs.qRef.addFiles(files); }
});
document.addEventListener("dragover", event => event.preventDefault());
</script>"""

ENTER = "event => { if (!event.shiftKey && !event.isComposing) { event.preventDefault(); emit(); } }"

TO_THE_END = "window.scrollTo(0, document.body.scrollHeight)"


def application(conversation: Dialogue, place: PageSource) -> Application:
    """The page as an ASGI application, for one process."""
    outer = FastAPI(openapi_url=None)
    ui.page("/", title=f"{conversation.model} - dflash-deploy")(lambda: Sheet(conversation, place).show())
    ui.run_with(outer, dark=None, show_welcome_message=False, favicon="💬")
    served: Application = outer
    return served


@dataclass
class Drawn:
    """A turn on the page, and what of it was drawn last."""

    turn: Turn
    answer: ui.html
    figures: ui.label
    last: tuple[object, ...] = ()

    def draw(self, figures: str, *, steps: bool) -> bool:
        """Draw what has changed, and return whether something has."""
        now = (len(self.turn.chunks), self.turn.state, figures, steps)
        if now == self.last:
            return False
        self.last = now
        self.answer.set_content(self.turn.html(steps=steps))
        self.figures.set_text(figures)
        return True


class Sheet:
    """The page in one tab. Other tabs show the same conversation."""

    def __init__(self, conversation: Dialogue, place: PageSource) -> None:
        self._conversation = conversation
        self._place = place
        self._images: list[EncodedPicture] = []
        self._drawn: list[Drawn] = []

    def show(self) -> None:
        """Draw the page."""
        ui.colors(primary="#0f8a68")
        ui.add_css(STYLE)
        side = ui.right_drawer(bordered=True, bottom_corner=True).props("width=372 breakpoint=1100").classes("q-pa-sm")
        with side:
            Drawer(self._conversation, self._place).show()
        with ui.header().classes("bar items-center no-wrap q-py-xs").props("bordered"):
            ui.label(self._conversation.model).classes("text-subtitle1 ellipsis").style("flex: 1; min-width: 0")
            self._steps = ui.switch("Show steps", on_change=self._tick)
            self._steps.tooltip("Shade the tokens that one step of the target yielded")
            _button("add_comment", "New conversation", self._conversation.clear)
            _button("menu", "Engine and clients", side.toggle)
        self._turns = ui.column().classes("chat").props('role=log aria-label="Conversation"')
        with ui.footer().classes("bar q-py-xs").props("bordered"), ui.column().classes("chat gap-1"):
            self._input()
        self._tick()
        ui.timer(TICK, self._tick)

    def _input(self) -> None:
        self._chosen = ui.row().classes("items-center")
        upload = ui.upload(multiple=True, auto_upload=True, max_file_size=LARGEST_IMAGE, on_upload=self._uploaded)
        upload.on_rejected(lambda: _tell(f"only pictures of at most {LARGEST_IMAGE // 2**20} MB"))
        upload.props("accept=image/*").classes("hidden")
        self._upload = upload
        ui.add_body_html(PASTE_AND_DROP.replace("UPLOAD", str(upload.id)))
        with ui.row().classes("w-full items-end no-wrap gap-1"):
            _button("add_photo_alternate", "Add pictures", lambda: upload.run_method("pickFiles"))
            self._question = ui.textarea(placeholder="Ask; drop or paste pictures").classes("col")
            self._question.props('autogrow outlined dense aria-label="Question" input-style="max-height: 30vh"')
            self._question.on("keydown.enter", self._ask, js_handler=ENTER)
            self._send = _button("send", "Send", self._ask)
            self._stop = _button("stop", "Stop", self._conversation.stop)

    async def _uploaded(self, event: UploadEventArguments) -> None:
        """Add a picture to the next question, if it is one."""
        self._upload.reset()
        try:
            if len(self._images) == MOST_IMAGES:
                raise BadInput("these are too many pictures", hint=f"at most {MOST_IMAGES} with one question")
            content = await event.file.read()
            if len(content) > LARGEST_IMAGE:
                raise BadInput("the picture is too large", hint=f"at most {LARGEST_IMAGE // 2**20} MB")
            checked = await run.io_bound(picture, content, shown(Path(event.file.name)))
            # `None` while the page ends
            self._images += [checked] if checked else []
        except BadInput as problem:
            _tell(f"{problem.message}: {problem.hint}")
        self._show_chosen()

    def _show_chosen(self) -> None:
        self._chosen.clear()
        with self._chosen:
            for image in self._images:
                _picture(preview(image), "A picture of the next question")
            if self._images:
                _button("close", "Remove pictures", self._remove)

    def _remove(self) -> None:
        self._images = []
        self._show_chosen()

    def _ask(self) -> None:
        try:
            self._conversation.ask(self._question.value or "", self._images)
        except BadInput as problem:
            _tell(f"{problem.message}: {problem.hint}")
            return
        self._question.set_value("")
        self._remove()
        self._tick()

    def _tick(self) -> None:
        """Draw what has arrived."""
        turns = self._conversation.turns
        if [one.turn for one in self._drawn] != turns[: len(self._drawn)]:
            self._turns.clear()
            self._drawn = []
        with self._turns:
            self._drawn += [_turn(turn) for turn in turns[len(self._drawn) :]]
        changed = [one.draw(self._figures(one.turn), steps=self._steps.value) for one in self._drawn]
        running = self._conversation.running
        self._send.set_visibility(not running)
        self._stop.set_visibility(running)
        if any(changed):
            ui.run_javascript(TO_THE_END)

    def _figures(self, turn: Turn) -> str:
        """What is known of an answer, on one line."""
        took, plain = turn.figures, self._conversation.plain
        rate = took.tokens_per_second if took else turn.rate
        parts = [turn.problem, "stopped" if turn.state == "stopped" else ""]
        if not turn.chunks and turn.state == "running":
            parts.append("reading the question")
        parts.append(f"{rate:.1f} tokens/s" if rate else "")
        if took:
            parts.append(f"{took.tokens} tokens" if took.tokens is not None else "")
            parts.append(f"first after {took.first_token_seconds:.2f} s" if took.first_token_seconds else "")
            parts.append(f"acceptance length {took.acceptance_length:.2f}" if took.acceptance_length else "")
            parts.append(f"without drafts {plain.tokens_per_second:.1f} tokens/s (bench)" if plain else "")
        return ", ".join(filter(None, parts))


def _turn(turn: Turn) -> Drawn:
    with ui.column().classes("asked gap-1"):
        for source in turn.previews:
            _picture(source, "A picture of the question")
        ui.label(turn.question)
    answer = ui.html("", sanitize=True).classes("answer")
    return Drawn(turn, answer, ui.label("").classes("figures").props("role=status"))


class Drawer:
    """The drawer: engine, last start, figures of `bench`, and how clients connect."""

    def __init__(self, conversation: Dialogue, place: PageSource) -> None:
        self._redact = conversation.redact
        self._place = place

    def show(self) -> None:
        """Draw the drawer."""
        with _section("Engine"):
            self._engine = ui.element("dl").classes("facts q-my-none")
            _button("refresh", "Refresh", self._refresh)
            ui.timer(0, self._refresh, once=True)
        measured, phases = self._place.measured(), self._place.start()
        with _section("Measured by bench"):
            if measured is None:
                ui.label("Nothing yet: `dflash-deploy bench --baseline` measures with and without drafts.")
            else:
                ui.label(f"Tokens per second, {measured.at}").classes("text-caption")
                chart = ui.echart(dict(measured.chart)).style(f"height: {measured.height}px; width: 100%")
                chart.props('role=img aria-label="Tokens per second"')
        if phases:
            with _section("Last start"), ui.element("dl").classes("facts q-my-none"):
                _rows([(phase, f"{took:.1f} s") for phase, took in phases.items()])
        with _section("Connect a client"):
            self._clients()

    async def _refresh(self) -> None:
        rows = await run.io_bound(self._place.engine, self._redact)
        if rows is None:
            # as NiceGUI returns while the page ends
            return
        self._engine.clear()
        with self._engine:
            _rows(rows)

    def _clients(self) -> None:
        try:
            found = self._place.clients()
        except DeployError as problem:
            ui.label(self._redact(f"{problem.message}: {problem.hint}"))
            return
        names = {name: client.title for name, client in found.known.items()}
        chosen = ui.select(names, label="Client", value=next(iter(names))).classes("w-full")
        drawn = ui.column().classes("w-full gap-2")

        def draw() -> None:
            drawn.clear()
            with drawn:
                self._client(found, chosen.value)

        chosen.on_value_change(draw)
        draw()

    def _client(self, found: Connections, name: str) -> None:
        client = found.known[name]
        ui.label(f"Goes into: {client.where}").classes("text-caption")
        self._copied("Configuration", found.configuration(name))
        self._copied("API key, by reference", found.export)
        if client.note:
            ui.label(client.note).classes("text-caption")

    def _copied(self, title: str, text: str) -> None:
        """A text to copy."""
        safe = self._redact(text)
        with ui.row().classes("w-full items-center justify-between"):
            ui.label(title).classes("text-caption")
            _button("content_copy", f"Copy: {title}", lambda: ui.clipboard.write(safe))
        ui.html(html.escape(safe), tag="pre", sanitize=True).classes("code").props("tabindex=0")


def _section(title: str) -> ui.expansion:
    return ui.expansion(title, value=True).classes("w-full").props("dense header-class=text-subtitle2")


def _rows(rows: Sequence[Row]) -> None:
    for name, text in rows:
        with ui.element("dt"):
            ui.label(name).classes("figures")
        with ui.element("dd").classes("q-ma-none"):
            ui.label(text)


def _button(icon: str, name: str, do: Callable[..., object]) -> ui.button:
    return ui.button(icon=icon, on_click=do).props(f'flat round color=primary aria-label="{name}"').tooltip(name)


def _picture(source: str, name: str) -> None:
    with ui.element("img") as drawn:
        drawn.props(f'src="{source}" alt="{name}"').classes("small")


def _tell(text: str) -> None:
    ui.notify(text, type="warning", multi_line=True)
