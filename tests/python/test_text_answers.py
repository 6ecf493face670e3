"""TextModel: answers, beside every span of every window computed one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from tiny_tokenizer import make_tokenizer, with_tokenizer

pytest.importorskip("tokenizers")


def expected_answers(
    model: packhorse.TextModel, question: str, context: str, length: int, stride: int, longest: int
) -> dict[tuple[int, int], float]:
    """Probability of every span of characters: windows and spans one by one, in float64."""
    tokenizer = make_tokenizer()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    asked = tokenizer.encode(question, add_special_tokens=False)
    told = tokenizer.encode(context, add_special_tokens=False)
    words = [told.word_to_chars(word) for word in told.word_ids]
    before = [2, *asked.ids, 3]
    room = length - len(before) - 1
    found: dict[tuple[int, int], float] = {}
    first = 0
    while True:
        part = told.ids[first : first + room]
        types = [0] * len(before) + [1] * (len(part) + 1)
        batch = packhorse.pack([[*before, *part, 3]], type_ids=[types])
        logits = model.session.run(batch, outputs=["logits"]).logits.astype(np.float64)
        keep = np.r_[0, len(before) : len(before) + len(part)]
        powers = np.exp(logits[keep])
        start, end = (powers / powers.sum(axis=0)).T
        none = float(start[0] * end[0])
        found[0, 0] = min(found.get((0, 0), none), none)
        for i in range(len(part)):
            for j in range(i, min(i + longest, len(part))):
                span = words[first + i][0], words[first + j][1]
                found[span] = max(found.get(span, 0), float(start[1 + i] * end[1 + j]))
        if first + room >= len(told.ids):
            return found
        first += room - stride


@pytest.mark.parametrize(("length", "stride", "longest"), [(40, 10, 15), (20, 3, 2), (13, 0, 4)])
def test_answers(length: int, stride: int, longest: int, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-answers", tmp_path / "m")
    model = packhorse.TextModel.load(folder, max_tokens=60, max_sequences=3)
    questions = ["Who sat?", "Where is Paris?", "what", "who"]
    contexts = [
        "Mark sat on the mat, and the dogs were singing in Paris. " * 6,
        "the cat's mat",
        "",
        "dogs",
    ]
    options = {"max_length": length, "stride": stride, "max_answer_length": longest}
    found = model.answer(questions, contexts, top_k=3, **options)
    for question, context, answers in zip(questions, contexts, found, strict=True):
        right = expected_answers(model, question, context, length, stride, longest)
        none = right.pop((0, 0))
        best = sorted(right.values(), reverse=True)
        assert 1 <= len(answers) <= 3
        for answer in answers:
            assert answer["answer"] == context[answer["start"] : answer["end"]]
            score = right.get((answer["start"], answer["end"]), none)
            np.testing.assert_allclose(answer["score"], score, rtol=1e-5)
        np.testing.assert_allclose(answers[0]["score"], best[0] if best else none, rtol=1e-5)
        allowed = model.answer(question, context, top_k=9999, allow_none=True, **options)
        (nothing,) = (answer for answer in allowed if not answer["answer"])
        np.testing.assert_allclose(nothing["score"], none, rtol=1e-5)
        assert model.answer(question, context, **options) == answers[0]


def test_answer_windows(tmp_path: Path) -> None:
    model = packhorse.TextModel.load(with_tokenizer(GOLDEN / "bert-answers", tmp_path / "m"))
    context = "the cat sat on the mat " * 10
    with pytest.raises(ValueError, match=r"texts\[1\]: the question has 38 tokens with special"):
        model.answer(["who", "who " * 35], [context] * 2)
    with pytest.raises(ValueError, match="both str, or both iterables"):
        model.answer("who", [context])
    with pytest.raises(ValueError, match="zip"):
        model.answer(["who"], [context] * 2)
    with pytest.raises(ValueError, match="top_k 0"):
        model.answer("who", context, top_k=0)
    assert model.answer([], []) == []
