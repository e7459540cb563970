"""What vLLM 0.33.0 decides on a GPU that is not here: its own code, asked in one process about many plans."""

from tests.support.decisions.questions import Decision, Question, decisions

__all__ = ["Decision", "Question", "decisions"]
