"""The name, the scope and the limits of an API key, as arguments and options of several commands."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dflash_deploy.serve.api_keys import LARGEST_LIMIT

KeyName = Annotated[str, typer.Argument(help="Whose key: up to 15 small letters, digits, - and _.", show_default=False)]

KeyScope = Annotated[
    Literal["infer", "metrics", "all"],
    typer.Option(help="infer: generate; metrics: only GET /metrics; all: every route."),
]

InFlight = Annotated[
    int | None, typer.Option(min=1, max=LARGEST_LIMIT, help="Requests at the same time; more get 429.")
]

TokensPerMinute = Annotated[
    int | None, typer.Option(min=1, max=LARGEST_LIMIT, help="Tokens read and generated within 60 s; then 429.")
]
