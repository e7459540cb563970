"""All kinds of documents, by name."""

from functools import cache

from tests.fuzz import of_answers, of_catalog, of_deployment, of_weights
from tests.fuzz.kind import Kind


@cache
def all_kinds() -> dict[str, Kind]:
    """Every kind, by its name."""
    made = (*of_deployment.kinds(), *of_weights.kinds(), *of_answers.kinds(), *of_catalog.kinds())
    return {kind.name: kind for kind in made}
