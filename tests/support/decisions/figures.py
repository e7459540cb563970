"""The sentences of the documentation that have figures of a run of `make test-decisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.decisions.asked import asked, mended, not_askable, plans, rooms, window_is_known


def statements() -> Mapping[str, Sequence[str]]:
    """What the pages say, by page."""
    answers, compared = asked(), list(rooms())
    replaced = sum(mended(plan) for plan, _ in answers)
    known = sum(window_is_known(plan) for plan, _, _ in compared)
    others = [(plan, planned / allocated) for plan, planned, allocated in compared if not window_is_known(plan)]
    return {
        "docs/reference/ask-engine.md": [
            f"Of {len(plans())} combinations of profile and pair it answers for {len(answers)}",
            f"In {len(answers) - replaced} vLLM decides what `plan` says",
            f"In {replaced} it refused the backend of the profile",
            f"{sum(not_askable().values())} combinations are not askable",
        ],
        "docs/explanation/memory.md": [
            f"for {len(compared)} plans",
            f"| {known} plans, of all families | less than 0.1% |",
            *(f"1 plan of {plan.pair.family.title} | {1 - ratio:.1%} too few |" for plan, ratio in others),
        ],
    }
