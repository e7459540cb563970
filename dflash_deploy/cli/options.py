"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dflash_deploy.cli.completion import deployments, engines, models, profiles, recipes

HERE = Path()


Directory = Annotated[
    Path, typer.Option("--dir", help="The deployment directory.", file_okay=False, autocompletion=deployments)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
JsonStream = Annotated[
    bool,
    typer.Option("--json-stream", help="Print each step of progress as a line of JSON, and the document as the last."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", help="A file that holds the API key of --url and nothing else.")
]
Patience = Annotated[
    float, typer.Option(min=1, help="Give up on the engine after this many seconds without a sign of progress.")
]

Profile = Annotated[str | None, typer.Option(help="Hardware profile; detected if left out.", autocompletion=profiles)]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--pair",
        help="Target and drafter, by name or by the target's repository; else the profile's.",
        autocompletion=models,
    ),
]
Engine = Annotated[
    str | None, typer.Option(help="vllm, sglang, llamacpp, or a release of the catalog.", autocompletion=engines)
]
Recipe = Annotated[
    str | None,
    typer.Option(help="Models, engine and settings of a published recipe of the profile.", autocompletion=recipes),
]
Goal = Annotated[
    Literal["latency", "throughput", "context", "coding"] | None, typer.Option(help="What to choose the sizes for.")
]
Length = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Longest sequence in tokens, prompt and answer together.")
]
Streams = Annotated[int | None, typer.Option(min=1, max=100_000, help="Requests to answer at the same time.")]
NoDrafter = Annotated[bool, typer.Option("--no-drafter", help="Without speculative decoding, to compare with.")]
Runtime = Annotated[Literal["compose", "native"] | None, typer.Option(help="Containers, or a process on this machine.")]
Replicas = Annotated[
    str | None,
    typer.Option("--replicas", help="Engines on this machine, behind one router: a number, or auto.", metavar="N|auto"),
]
Rank = Annotated[int | None, typer.Option(min=0, help="Rank of this machine among several; rank 0 answers requests.")]
Master = Annotated[str | None, typer.Option(help="Address of rank 0 on the link between the machines.")]
Replica = Annotated[int | None, typer.Option("--replica", min=1, help="Only this one of several engines, from 1.")]
