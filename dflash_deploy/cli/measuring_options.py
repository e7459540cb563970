"""What is measured, how, and beside what: options of `bench`, `tune` and `test`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# --- what is measured
Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help="code, maths, chat, prose, vision, own, all; gsm8k, math500, humaneval, mbpp, mt-bench. With commas.",
    ),
]
Mixture = Annotated[str, typer.Option("--workload", "-w", help="As for `bench`; several are measured as one mixture.")]
Prompts = Annotated[
    Path | None, typer.Option(help="A JSONL file with `prompt` or `messages` in each line.", dir_okay=False)
]
Concurrency = Annotated[str, typer.Option(help="Requests at the same time, one measurement for each number.")]

# --- how
Requests = Annotated[
    int | None,
    typer.Option(min=1, help="Requests per repeat; else each prompt once, at least two times the concurrency."),
]
Repeats = Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")]
RepeatsForMedian = Annotated[int, typer.Option(min=1, help="Repeats of each measurement; the median counts.")]
Warmup = Annotated[
    int | None, typer.Option(min=0, help="Requests before each measurement; else as many as the concurrency.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer, unless the prompt has its own length.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="Of sampling; 0 is greedy.")]
Thinking = Annotated[bool, typer.Option("--thinking", help="Let the model think, if its template asks.")]

# --- beside what
Baseline = Annotated[
    bool, typer.Option("--baseline", help="Also without speculative decoding: the engine restarts for it, and back.")
]
BaselineUrl = Annotated[
    str | None, typer.Option(help="Also without speculative decoding: a second endpoint with the same key and model.")
]
MtpHead = Annotated[
    int | None,
    typer.Option(min=1, help="Also with the target's MTP head and this many draft tokens: one more restart."),
]
MinSpeedup = Annotated[float | None, typer.Option(min=0, help="Fail with exit code 7 if a speed-up is below this.")]
SameAnswers = Annotated[
    bool,
    typer.Option(
        "--baseline",
        help="Also compare answers with those without speculative decoding: the engine restarts for it, and back.",
    ),
]
SameAnswersUrl = Annotated[
    str | None,
    typer.Option(help="The same target without speculative decoding, same API key: are the answers the same?"),
]
