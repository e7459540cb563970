"""`ask` and `chat`: questions to a deployment or any endpoint, with pictures and files, and what the answers took."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, Endpoint, check_answering, served_names
from dflash_deploy.client.talk import EncodedPicture, Talk
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.document import Documented
from dflash_deploy.errors import BadInput, DeployError, EngineNotReady
from dflash_deploy.intake.files import MIB, read_argument, read_bytes, shown
from dflash_deploy.operations.addresses import CHECK_URL, address_of, key_in
from dflash_deploy.operations.figures import LAST_BASELINE, last_figures
from dflash_deploy.operations.restarts import refuse_other_ranks
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact, Redactor
from dflash_deploy.startup.engine import whole_endpoint

LARGEST_IMAGE = 20 * MIB  # bytes of one picture
LARGEST_FILE = 4 * MIB  # bytes of one file, and of a question from standard input: more than any context holds
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
STDIN = "-"  # in place of a file: standard input
_SENT_AS_IT_IS = {"PNG": "image/png", "JPEG": "image/jpeg"}  # what every engine reads. Other pictures are sent as PNG.


@dataclass(frozen=True)
class BaselineSpeed:
    """Tokens a second of one request without drafts, after its first token, and the time of that measurement."""

    tokens_per_second: float
    at: str


@dataclass(frozen=True)
class AskedEndpoint:
    """An endpoint that answers questions. `plain` is its speed without drafts, if `bench --baseline` measured it."""

    endpoint: Endpoint
    redact: Redact
    plain: BaselineSpeed | None = None


@contextmanager
def asked(
    directory: Path, *, url: str | None = None, key_file: Path | None = None, model: str = ""
) -> Iterator[AskedEndpoint]:
    """Yield the endpoint of a deployment, or the one at `url`, after it has answered.

    Raises NoDeployment, SettingsRefused, BadInput on a rank that answers no requests, and EngineNotReady.
    """
    with ExitStack() as stack:
        if url is not None:
            key = key_in(key_file)
            redact = Redactor([key])
            endpoint = stack.enter_context(Endpoint(address_of(url), key, model, proxies=True))
            check_answering(endpoint, hint="check the URL, and whether its server runs", redact=redact)
            endpoint.model = model or served_names(endpoint, hint=CHECK_URL, redact=redact)[0]
            yield AskedEndpoint(endpoint, redact)
            return
        if key_file is not None or model:
            raise BadInput("--key-file and --model belong to --url", hint="a deployment has both in its .env")
        deployment = Deployment.existing(directory)
        plan = plan_of(deployment)
        refuse_other_ranks(plan)
        endpoint = stack.enter_context(whole_endpoint(deployment, plan))
        check_answering(endpoint, hint=START_IT, redact=deployment.redact)
        yield AskedEndpoint(endpoint, deployment.redact, _plain(deployment))


def _plain(deployment: Deployment) -> BaselineSpeed | None:
    """The speed without drafts of the last run of `bench` that measured it with one request at a time."""
    run = last_figures(deployment, LAST_BASELINE)
    if run is None:
        return None
    plain = (row.tpot_ms for row in run.rows if row.drafter is False and not row.mtp and row.concurrency == 1)
    times = [tpot.mean for tpot in plain if tpot is not None and tpot.mean]
    return BaselineSpeed(1000 * len(times) / sum(times), run.measured.at) if times else None


@dataclass(frozen=True)
class WholeAnswer(Documented):
    """An answer, and what it took."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests."""
    answer: str
    """The answer."""
    thinking: str
    """What the model thought before it; empty if it did not."""
    tokens: int | None
    """Generated tokens, thinking included; null if the endpoint does not report them."""
    seconds: float
    """Seconds from the request to the end of the answer."""
    first_token_seconds: float | None
    """Seconds from the request to the first token; null without one."""
    tokens_per_second: float | None
    """Tokens per second after the first step; null for answers of a few steps, which do not show it."""
    acceptance_length: float | None
    """Tokens per step; null if nothing was drafted or counted."""
    tokens_per_second_without_drafts: float | None
    """What the last `bench --baseline` measured without drafts, one request at a time; null without one."""
    finish_reason: str
    """Why it ended: `stop`, or `length` at a limit of tokens."""


def whole_answer(found: AskedEndpoint, talk: Talk) -> WholeAnswer:
    """Wait for an answer. Raises EndpointError."""
    chunks = list(talk.chunks())
    figures, plain = talk.figures(), found.plain
    return WholeAnswer(
        f"{found.endpoint.url}/v1",
        found.endpoint.model,
        "".join(chunk.text for chunk in chunks if not chunk.thinking),
        "".join(chunk.text for chunk in chunks if chunk.thinking),
        figures.tokens,
        round(figures.seconds, 3),
        figures.first_token_seconds and round(figures.first_token_seconds, 3),
        figures.tokens_per_second and round(figures.tokens_per_second, 1),
        figures.acceptance_length and round(figures.acceptance_length, 2),
        round(plain.tokens_per_second, 1) if plain else None,
        figures.finish_reason,
    )


def failed(problem: EndpointError, redact: Redact) -> DeployError:
    """The error of a question that has no whole answer."""
    said = redact(str(problem))
    if problem.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        whose = "`dflash-deploy status` says whether it is the deployment's engine that answered"
        return BadInput(said, hint=f"{whose}; with --url, name the file with the key: --key-file")
    if problem.status is not None and problem.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return BadInput(said, hint="the endpoint is fine and refuses this question: change what it names")
    return EngineNotReady(said, hint="see its state: `dflash-deploy status`, and why: `dflash-deploy logs --tail 50`")


def pictures_among(words: Sequence[str]) -> tuple[str, list[str]]:
    """The question that arguments make, and the pictures among them: those whose name ends so, unless it has blanks.

    A name with blanks is a picture if the file exists.
    """
    pictures = [word for word in words if word.lower().endswith(PICTURES) and (" " not in word or Path(word).is_file())]
    return " ".join(word for word in words if word not in pictures), pictures


def question_of(words: str, files: Sequence[str]) -> str:
    """The text of a question: its words, and below them each file with its name. Raises BadInput."""
    if words in {"", STDIN}:
        words = _read_stdin()
    parts = [_checked(words, "the question")]
    for name in files:
        path = Path(name)
        text = _read_stdin() if name == STDIN else _checked(read_argument(path, limit=LARGEST_FILE), shown(path))
        parts.append(f"{path.name if name != STDIN else 'standard input'}:\n\n{text}")
    return "\n\n".join(parts)


def _checked(words: str, what: str) -> str:
    try:
        words.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"{what} is not UTF-8", hint="use a terminal with UTF-8, or convert it: iconv -f latin1 -t utf-8"
        ) from None
    if not words.strip():
        raise BadInput(f"{what} is empty", hint='such as `dflash-deploy ask "What is the capital of France?"`')
    return words


def _read_stdin() -> str:
    """The text on standard input. Raises BadInput if it is a terminal, too large or not UTF-8."""
    content = _stdin_bytes(LARGEST_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadInput(
            "standard input is not UTF-8 text", hint="convert it: iconv -f latin1 -t utf-8; --image - reads a picture"
        ) from None


def _stdin_bytes(limit: int) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise BadInput(
            "there is nothing to ask",
            hint='such as `dflash-deploy ask "What is DFlash?"`, or `dflash-deploy chat`',
        )
    content = sys.stdin.buffer.read(limit + 1)
    if len(content) > limit:
        raise BadInput(f"standard input has more than {limit // MIB} MiB", hint="no context holds that: send a part")
    return content


def read_image(name: str) -> EncodedPicture:
    """A picture from a file, or from standard input for `-`. PNG and JPEG stay as they are, others become PNG.

    Raises BadInput if it is none, is damaged, or is larger than LARGEST_IMAGE; FileRefused if it cannot be read.
    """
    if name == STDIN:
        return picture(_stdin_bytes(LARGEST_IMAGE), "standard input")
    if name.startswith(("http://", "https://")):
        raise BadInput(
            f"`{name[:100]}` is not a file", hint="fetch it first: curl -o picture.jpg URL, then --image picture.jpg"
        )
    return picture(read_bytes(Path(name), limit=LARGEST_IMAGE), shown(Path(name)))


def picture(content: bytes, where: str) -> EncodedPicture:
    """A picture from its bytes, checked as `read_image` checks them; `where` names it. Raises BadInput."""
    # only a question with a picture needs it
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415

    hint = "use PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF; convert others, such as HEIC, first"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as opened:
                kind = opened.format or ""
                if kind in _SENT_AS_IT_IS:
                    # damaged ones are refused here, with their name
                    opened.verify()
                    return EncodedPicture(_SENT_AS_IT_IS[kind], content)
                as_png = io.BytesIO()
                opened.convert("RGBA" if opened.has_transparency_data else "RGB").save(as_png, "PNG")
                return EncodedPicture("image/png", as_png.getvalue())
    except UnidentifiedImageError:
        raise BadInput(f"{where} is not a picture that can be read", hint=hint) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise BadInput(f"{where} has more than {most} megapixels", hint="make it smaller first") from None
    except (OSError, ValueError, SyntaxError, EOFError) as problem:
        raise BadInput(f"{where} is damaged: {str(problem)[:100]}", hint=hint) from None
