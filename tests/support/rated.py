"""How likely the words of an answer are, as engines state it for the tokens of a prompt (`echo`)."""

from collections.abc import Sequence

RIGHT, WRONG = -0.01, -9.0  # log-probabilities of the word that the model would write, and of every other


def rated(question: str, answer: Sequence[str], own: Sequence[str]) -> dict[str, object]:
    """The `logprobs` of a prompt of a question and an answer, by a model whose own answer is `own`."""
    pairs = [(word, own[place] if place < len(own) else "") for place, word in enumerate(answer)]
    return {
        "tokens": [question, *answer],
        "token_logprobs": [None, *(RIGHT if word == right else WRONG for word, right in pairs)],
        "top_logprobs": [None, *({right: RIGHT} for _, right in pairs)],
    }
