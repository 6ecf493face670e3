"""Sampling options: choice of the next token, and ends of a generated text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from packhorse.generation.setting_checks import (
    attention_heads,
    length_decay,
    require,
    sequence_biases,
    token_biases,
    token_id_or_ids,
    token_ids,
    token_sequences,
)
from packhorse.number_checks import is_int, is_number

EarlyStopping = bool | Literal["never"]
SequenceBias = Mapping[Sequence[int], float] | Sequence[Sequence[Any]]


class TokenMask(Protocol):
    """Decides token by token which tokens may come next. Of one request alone.

    Its methods are called by the thread of the engine, which takes the interpreter lock for them:
    they should be quick. What they raise fails the request, with the message, and no other.
    """

    def fill(self, words: memoryview) -> bool:
        """Sets bit t % 32 of word t // 32 where token t is allowed.

        words  uint32 [ceil(vocab_size / 32)], writable, all zero, released after the call

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
    "alignment_source": (1, 2**31, "a whole number from 1 on, or None"),
    "draft_tokens": (0, 2**31, "a whole number from 0 on, or None"),
    "no_repeat_ngram_size": (0, 2**62, "a whole number from 0 on (0: no limit)"),
    "encoder_no_repeat_ngram_size": (0, 2**62, "a whole number from 0 on (0: no limit)"),
    "min_new_tokens": (0, 2**62, "a whole number from 0 on"),
    "forced_bos_token_id": (0, 2**31 - 1, "a token id, or None"),
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
    "alignment_source",
    "draft_tokens",
    "forced_bos_token_id",
)
# Field -> its check, which gives it one form.
_FORMS: Mapping[str, Callable[[str, Any], Any]] = {
    "alignment_heads": attention_heads,
    "stop_ids": token_ids,
    "suppress_tokens": token_ids,
    "begin_suppress_tokens": token_ids,
    "forced_eos_token_id": token_id_or_ids,
    "bad_words_ids": token_sequences,
    "logit_bias": token_biases,
    "sequence_bias": sequence_biases,
    "exponential_decay_length_penalty": length_decay,
}
_OF_CHANCE = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}


@dataclass(frozen=True)
class TimestampRules:
    """Tokens of time of a model of speech: all from `begin` on.

    They come in pairs of begin and end around the text of a segment, never fall, and the first new
    token is one; a prompt may end with it and text behind it, which are then gone on with. Where
    they are more probable together than each other token, one is chosen (Radford et al. 2022,
    arXiv 2212.04356).

    begin          token of the time 0
    end_of_text    the first token that is no text
    no_timestamps  token that is never chosen, or None
    max_initial    steps of time up to which the first token may go; None: any
    """

    begin: int
    end_of_text: int
    no_timestamps: int | None = None
    max_initial: int | None = None

    def __post_init__(self) -> None:
        for name in ("begin", "end_of_text", "no_timestamps", "max_initial"):
            value = getattr(self, name)
            optional = value is None and name in ("no_timestamps", "max_initial")
            right = optional or (is_int(value) and 0 <= value < 2**31)
            require(right, f"timestamps.{name}", value, "a whole number from 0 on")


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
    suppress_tokens     these tokens may not be chosen
    begin_suppress_tokens
                        these may not be chosen as the first new token
    bad_words_ids       [[token id, ...], ...]: none of these sequences may be completed
    sequence_bias       [[[token id, ...], number], ...] or {(token id, ...): number}: is added to
                        the logit of the last token of a sequence where the others stand before it
    no_repeat_ngram_size
                        no so many tokens of prompt and output come twice; 0: they may
    encoder_no_repeat_ngram_size
                        no so many tokens of the source come in the output; 0: they may
    min_new_tokens      before so many new tokens none that ends a sequence may be chosen
    forced_bos_token_id this token comes after a prompt of a single token
    forced_eos_token_id the last of max_new_tokens is this token, or one of these; unless
                        allowed_ids or mask have none of them
    exponential_decay_length_penalty
                        (start, factor): after `start` new tokens the logit of each token that ends
                        a sequence grows by its size times factor ** (new tokens - start) - 1
    timestamps          `TimestampRules`: the order of tokens of time in the output of a model of
                        speech; None: tokens of time are tokens as others
    filtered_logprobs   log-probabilities are those of the tokens that masks and settings leave, in
                        a model of speech
    mask                a `TokenMask` of this request alone; None: none
    stop_ids            tokens that end a sequence, beside those that end one by the model's files
    ignore_eos          the latter do not end a sequence
    deadline_s          seconds after the submission when the request ends with what it has
    seed                equal seeds give equal tokens, whatever else runs; None: a random one
    logprobs            log-probabilities of the chosen tokens (0), and of the k most probable ones
                        (k), by the model itself: before penalties, masks, temperature; None: none
    prompt_logprobs     the same of the prompt's tokens, from the second one on; with
                        filtered_logprobs, among allowed_ids
    alignment_heads     [(layer, head), ...] of cross attention, whose weights over the source are
                        wanted for each token of the prompt; none: no weights
    alignment_source    first tokens of the source over which those weights add up to 1; None: all
    n                   sequences that are wanted; with beam search its best hypotheses
    num_beams           beam search over so many beams where above 1; without chance
    length_penalty      hypotheses are ranked by the sum of their log-probabilities divided by
                        (number of new tokens) ** length_penalty
    early_stopping      when beam search ends, as transformers names it: False, True or "never"
    patience            beam search as of openai-whisper, until num_beams * patience hypotheses are
                        finished; 0: as transformers has it
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
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    bad_words_ids: Sequence[Sequence[int]] = ()
    sequence_bias: SequenceBias = ()
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    exponential_decay_length_penalty: Sequence[float] | None = None
    timestamps: TimestampRules | None = None
    filtered_logprobs: bool = False
    mask: TokenMask | None = None
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    deadline_s: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    alignment_heads: Sequence[tuple[int, int]] = ()
    alignment_source: int | None = None
    n: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    patience: float = 0.0
    adapter: str | None = None
    draft_tokens: int | None = None
    cache_salt: int = 0

    def __post_init__(self) -> None:
        for name, (low, closed, high, expected) in _NUMBERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            right = is_number(value) and value <= high and (value >= low if closed else value > low)
            require(right, name, value, expected)
        for name, (least, most, expected) in _INTEGERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            require(is_int(value) and least <= value <= most, name, value, expected)
        for name in ("ignore_eos", "filtered_logprobs"):
            require(
                isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False"
            )
        times = self.timestamps
        known = times is None or isinstance(times, TimestampRules)
        require(known, "timestamps", times, "TimestampRules, or None")
        early = self.early_stopping
        expected = "True, False or 'never'"
        require(isinstance(early, bool) or early == "never", "early_stopping", early, expected)
        named = self.adapter is None or (isinstance(self.adapter, str) and self.adapter != "")
        require(named, "adapter", self.adapter, "the name of an adapter, or None")
        if self.allowed_ids is not None:
            allowed = token_ids("allowed_ids", self.allowed_ids)
            require(allowed != (), "allowed_ids", [], "one token id at least, or None for all")
            object.__setattr__(self, "allowed_ids", allowed)
        for name, in_one_form in _FORMS.items():
            object.__setattr__(self, name, in_one_form(name, getattr(self, name)))
        for method in ("fill", "accept"):
            right = self.mask is None or callable(getattr(self.mask, method, None))
            require(right, "mask", self.mask, "None or an object with fill and accept")
        self._check_beams()

    def _check_beams(self) -> None:
        if self.num_beams == 1:
            return
        for name, neutral in _OF_CHANCE.items():
            value = getattr(self, name)
            expected = f"{neutral} with num_beams={self.num_beams}, which leaves nothing to chance"
            require(value == neutral, name, value, expected)
        expected = f"at most num_beams, which is {self.num_beams}"
        require(self.n <= self.num_beams, "n", self.n, expected)
