"""How the next token of a generated text is chosen, and when the text ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

EarlyStopping = bool | Literal["never"]
_INT32 = 2**31


class TokenMask(Protocol):
    """Decides token by token which tokens may come next. Of one request alone.

    Its methods are called by the thread of the engine, which takes the interpreter lock for them:
    they should be quick. What they raise fails the request, with the message, and no other.
    """

    def fill(self, words: memoryview) -> bool:
        """Sets bit t % 32 of word t // 32 where token t is allowed.

        words  uint32 [ceil(vocab_size / 32)], writable, all zero, valid during the call alone

        Returns whether it has: False where every token is allowed. Where no bit is set, the
        sequence ends with finish_reason "stop".
        """
        ...

    def accept(self, token: int) -> None:
        """Told of the token that was chosen."""
        ...

    def fork(self) -> TokenMask:
        """A mask in the same state, for another sequence of the request."""
        ...


def _require(right: bool, name: str, found: object, expected: str) -> None:
    if not right:
        raise ValueError(f"{name} is {found!r:.80}, expected {expected}")


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    real = isinstance(value, int | float | np.integer | np.floating)
    return real and not isinstance(value, bool) and math.isfinite(value)


# Field -> (least value, whether that value itself is allowed, greatest value, what is expected).
_NUMBERS: Mapping[str, tuple[float, bool, float, str]] = {
    "temperature": (0, True, math.inf, "a number from 0 on"),
    "top_p": (0, False, 1, "a number above 0 and up to 1"),
    "min_p": (0, True, 1, "a number from 0 to 1"),
    "repetition_penalty": (0, False, math.inf, "a number above 0"),
    "presence_penalty": (-math.inf, False, math.inf, "a finite number"),
    "frequency_penalty": (-math.inf, False, math.inf, "a finite number"),
    "length_penalty": (-math.inf, False, math.inf, "a finite number"),
    "deadline_s": (0, False, math.inf, "seconds above 0, or None"),
}
# Field -> (least value, greatest value, what is expected).
_INTEGERS: Mapping[str, tuple[int, int, str]] = {
    "max_new_tokens": (0, 2**62, "a whole number from 0 on, or None"),
    "top_k": (0, 2**62, "a whole number from 0 on (0: all tokens)"),
    "seed": (0, 2**64 - 1, "a whole number from 0 to 2**64 - 1, or None"),
    "logprobs": (0, 2**31, "a whole number from 0 on, or None"),
    "prompt_logprobs": (0, 2**31, "a whole number from 0 on, or None"),
    "draft_tokens": (0, 2**31, "a whole number from 0 on, or None"),
    "cache_salt": (0, 2**29, "a whole number from 0 to 2**29"),
    "n": (1, 1024, "a whole number from 1 to 1024"),
    "num_beams": (1, 2**31, "a whole number from 1 on"),
}
_OPTIONAL = (
    "max_new_tokens",
    "deadline_s",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "draft_tokens",
)
_OF_CHANCE = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}


@dataclass(frozen=True)
class Sampling:
    """Settings of one request, under the names of the C++ library (packhorse/sampling.h). The
    defaults choose the most probable token each time.

    max_new_tokens      tokens of each sequence at most; None: as many as the context takes
    temperature         logits are divided by it; 0: the most probable token, without chance
    top_k               only the k most probable tokens may be chosen; 0: all
    top_p               only the fewest tokens whose probabilities add up to top_p may be chosen
    min_p               tokens less probable than min_p times the most probable one may not be
    repetition_penalty  logits of tokens of prompt and output are divided by it where positive, and
                        multiplied where negative
    presence_penalty    is subtracted from the logit of each token that the output has already
    frequency_penalty   the same, as many times as the output has the token
    logit_bias          {token id: what is added to its logit; -inf forbids the token}
    allowed_ids         only these tokens may be chosen; None: all
    mask                a `TokenMask` of this request alone; None: none
    stop_ids            tokens that end a sequence, beside those that end one by the model's files
    ignore_eos          the latter do not end a sequence
    deadline_s          seconds after the submission when the request ends with what it has
    seed                equal seeds give equal tokens, whatever else runs; None: a random one
    logprobs            log-probabilities of the chosen tokens (0), and of the k most probable ones
                        (k), by the model itself: before penalties, masks, temperature; None: none
    prompt_logprobs     the same of the prompt's tokens, from the second one on
    n                   sequences that are wanted; with beam search its best hypotheses
    num_beams           beam search over so many beams where above 1; without chance
    length_penalty      hypotheses are ranked by the sum of their log-probabilities divided by
                        (number of new tokens) ** length_penalty
    early_stopping      when beam search ends, as transformers names it: False, True or "never"
    adapter             the name of an adapter of the session; None: the model as it is
    draft_tokens        tokens that are drafted ahead at most, up to the session's `draft_tokens`,
                        which None stands for; 0: none. The output does not depend on it
    cache_salt          requests of other salts do not find this one's prompt in the prefix cache

    Raises ValueError that names the setting, what was found and what was expected.
    """

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: Sequence[int] | None = None
    mask: TokenMask | None = None
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    deadline_s: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    adapter: str | None = None
    draft_tokens: int | None = None
    cache_salt: int = 0

    def __post_init__(self) -> None:
        for name, (low, closed, high, expected) in _NUMBERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            right = (
                _is_number(value) and value <= high and (value >= low if closed else value > low)
            )
            _require(right, name, value, expected)
        for name, (least, most, expected) in _INTEGERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            _require(_is_int(value) and least <= value <= most, name, value, expected)
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        early = self.early_stopping
        expected = "True, False or 'never'"
        _require(isinstance(early, bool) or early == "never", "early_stopping", early, expected)
        named = self.adapter is None or (isinstance(self.adapter, str) and self.adapter != "")
        _require(named, "adapter", self.adapter, "the name of an adapter, or None")
        if self.allowed_ids is not None:
            allowed = _token_ids("allowed_ids", self.allowed_ids)
            _require(allowed != (), "allowed_ids", [], "one token id at least, or None for all")
            object.__setattr__(self, "allowed_ids", allowed)
        object.__setattr__(self, "stop_ids", _token_ids("stop_ids", self.stop_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        for method in ("fill", "accept"):
            right = self.mask is None or callable(getattr(self.mask, method, None))
            _require(right, "mask", self.mask, "None or an object with fill and accept")
        self._check_beams()

    def _check_beams(self) -> None:
        if self.num_beams == 1:
            return
        for name, neutral in _OF_CHANCE.items():
            value = getattr(self, name)
            expected = f"{neutral} with num_beams={self.num_beams}, which leaves nothing to chance"
            _require(value == neutral, name, value, expected)
        expected = f"at most num_beams, which is {self.num_beams}"
        _require(self.n <= self.num_beams, "n", self.n, expected)


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    expected = "a list of token ids"
    if isinstance(ids, str | bytes):
        _require(False, name, ids, expected)
    try:
        found = tuple(ids)
    except TypeError:
        _require(False, name, ids, expected)
    for i, token in enumerate(found):
        _require(_is_int(token) and 0 <= token < _INT32, f"{name}[{i}]", token, "a token id")
    return tuple(map(int, found))


def _bias(given: Any) -> Mapping[int, float]:
    if given is None:
        return {}
    _require(isinstance(given, Mapping), "logit_bias", given, "a mapping of token ids to numbers")
    for token, bias in given.items():
        _require(_is_int(token) and 0 <= token < _INT32, "logit_bias: key", token, "a token id")
        right = _is_number(bias) or bias == -math.inf
        _require(right, f"logit_bias[{token}]", bias, "a number, or -inf")
    return {int(token): float(bias) for token, bias in given.items()}
