"""Options of generated texts: as asked for, else as the model's files say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from packhorse.generation.sampling import EarlyStopping, Sampling, SequenceBias
from packhorse.number_checks import is_int
from packhorse.progress_bar import Progress
from packhorse.text.other_names import unexpected_argument

if TYPE_CHECKING:
    from packhorse.text.generation.structured import Grammars
    from packhorse.text.generation.tool_schema import Tool
    from packhorse.text.generation.tool_use import ToolChoice
    from packhorse.text.tokenization.tokenizer import TextTokenizer


class RequestCall(TypedDict, total=False):
    """Options of all methods that generate; `TextModel.generate` says what they mean. None: as the
    model's files say, else the default of `packhorse.Sampling`."""

    max_new_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_ids: Sequence[int] | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    bad_words: str | Sequence[str] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    sequence_bias: SequenceBias | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    min_new_tokens: int | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    exponential_decay_length_penalty: Sequence[float] | None
    stop: str | Sequence[str] | None
    include_stop: bool | None
    shown_special_tokens: Sequence[str] | None
    stop_ids: Sequence[int] | None
    ignore_eos: bool | None
    deadline_s: float | None
    seed: int | None
    num_beams: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    logprobs: int | None
    prompt_logprobs: int | None
    adapter: str | None
    draft_tokens: int | None
    cache_salt: int | None
    schema: Any
    regex: str | None
    choices: Sequence[str] | None
    grammar: str | None
    progress: Progress | None


class GenerateCall(RequestCall, total=False):
    """Options of `TextModel.generate`."""

    return_attention: bool | None
    attention_layer: int | None


class SummarizeCall(GenerateCall, total=False):
    """Options of `TextModel.summarize`."""

    split: Literal["long", "sentences", "never"] | None


class TranslateCall(SummarizeCall, total=False):
    """Options of `TextModel.translate`."""

    source: str | None
    target: str | None
    target_prefix: str | None


class TemplateCall(TypedDict, total=False):
    """Options of the chat template."""

    tools: Sequence[Tool] | None
    documents: Sequence[Mapping[str, Any]] | None
    chat_template: str | None
    add_generation_prompt: bool
    continue_final_message: bool
    template_args: Mapping[str, Any] | None


class ChatCall(TemplateCall, RequestCall, total=False):
    """Options of `TextModel.chat`: those of the chat template, those of `generate`, and which of
    the tools may be called."""

    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None


FORMS = ("schema", "regex", "choices", "grammar")  # forms of the output
_NOT_OF_SAMPLING = {
    *("stop", "include_stop", "shown_special_tokens", "bad_words", "progress"),
    *FORMS,
}
_OF_CHANCE = {"top_k": 0, "top_p": 1, "min_p": 0}
CHAT_OPTIONS = frozenset(TemplateCall.__annotations__)


def check_options(method: str, options: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for an option that there is not, as Python itself would."""
    for name in options:
        if name not in known.__annotations__:
            raise unexpected_argument(method, name)


def check_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.80}, expected True or False")
    return value


def _special_tokens(tokenizer: TextTokenizer, texts: Any) -> frozenset[str]:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValueError(f"shown_special_tokens is {texts!r:.80}, expected a list of texts")
    for text in texts:
        if not isinstance(text, str) or tokenizer.id_of(text) not in tokenizer.special_ids:
            raise ValueError(f"shown_special_tokens: {text!r:.80} is no special token of the model")
    return frozenset(texts)


def _many(beams: object) -> bool:
    """True for beam search. What is no number of beams is refused by `Sampling`."""
    return is_int(beams) and beams != 1


class RequestOptions:
    """Options that each request of one call is submitted with.

    defaults  of the model's files, as `packhorse_weights` reads them
    n         sequences that are wanted of each prompt
    options   of `RequestCall`, checked by `check_options`
    default_length
              new tokens at most where nothing else limits them; None: up to the end of the context
    """

    def __init__(
        self,
        defaults: Mapping[str, Any],
        tokenizer: TextTokenizer,
        grammars: Grammars,
        n: int,
        options: Mapping[str, Any],
        default_length: int | None = None,
    ) -> None:
        from packhorse.text.generation.stop_strings import check_stops

        given = {name: value for name, value in options.items() if value is not None}
        settings = {name: given[name] for name in given.keys() - _NOT_OF_SAMPLING}
        defaults = dict(defaults)
        renormalizes = defaults.pop("renormalize_logits", False)
        if _many(given.get("num_beams")) or _many(defaults.get("num_beams")):
            for name in ("temperature", *_OF_CHANCE):
                defaults.pop(name, None)  # beam search leaves nothing to chance
            if renormalizes:
                raise ValueError(
                    "num_beams is above 1, but the model's generation_config.json says "
                    "renormalize_logits, which beam search does not support: load the model with "
                    "generation_config=False"
                )
        # Lengths of prompt and new tokens together, where nothing says how many new ones.
        lengths = {
            "min_new_tokens": defaults.pop("min_length", None),
            "max_new_tokens": defaults.pop("max_length", None),
        }
        self._lengths = {
            name: length
            for name, length in lengths.items()
            if length is not None and name not in {**defaults, **settings}
        }
        stops = given.get("stop", defaults.pop("stop", None))
        settings = {**defaults, **settings, "n": n}
        Sampling(**settings)  # checks it
        if "bad_words" in given:
            ids = [*settings.get("bad_words_ids", ()), *_word_ids(given["bad_words"], tokenizer)]
            settings["bad_words_ids"] = ids
        self.include_stop = check_flag("include_stop", given.get("include_stop", False))
        self.shown = _special_tokens(tokenizer, given.get("shown_special_tokens", ()))
        self.stops: list[str] = []
        stop_ids = list(settings.get("stop_ids", ()))
        special = tokenizer.special_ids
        for stop in check_stops(stops):
            token = tokenizer.id_of(stop)
            possible = token is not None and token < grammars.vocab_size
            if possible and token in special:
                stop_ids.append(token)  # the texts of special tokens are in no output
            else:
                self.stops.append(stop)
        self._settings = settings | {"stop_ids": stop_ids}
        if not settings.get("temperature"):
            for name, neutral in _OF_CHANCE.items():
                if given.get(name, neutral) != neutral and "temperature" not in given:
                    raise ValueError(
                        f"{name} is {given[name]}, but the most probable token is taken each time: "
                        "give a temperature above 0"
                    )
        self.default_length = default_length
        self._grammars = grammars
        self._form = {name: given.get(name) for name in FORMS}
        self._mask = grammars.make(**self._form)

    def sampling(self, prompt_tokens: int) -> Sampling:
        """Settings of one request; its mask is its own. Raises ValueError for a prompt that is too
        long."""
        mask = None if self._mask is None else self._mask.fork()
        lengths = {name: max(0, length - prompt_tokens) for name, length in self._lengths.items()}
        if lengths.get("max_new_tokens") == 0:
            raise ValueError(
                f"the prompt has {prompt_tokens} tokens, but the model's files say max_length "
                f"{self._lengths['max_new_tokens']}, new tokens included: give max_new_tokens"
            )
        return Sampling(**self._settings, **lengths, mask=mask)

    @property
    def reading(self) -> dict[str, Any]:
        """Those settings of `Sampling` on which depends what a model makes of tokens it reads, and
        what the cache knows of them."""
        names = ("adapter", "cache_salt")
        return {name: self._settings[name] for name in names if name in self._settings}

    @property
    def logprobs(self) -> int | None:
        """Number of log-probabilities beside that of each token; None: there are none at all."""
        found = self._settings.get("logprobs")
        return None if found is None else int(found)

    @property
    def num_beams(self) -> int:
        return int(self._settings.get("num_beams", 1))


def _word_ids(words: Any, tokenizer: TextTokenizer) -> list[list[int]]:
    """Tokens of words, each as it begins a text and as it follows a space."""
    if not isinstance(words, Iterable):
        raise ValueError(f"bad_words is {words!r:.80}, expected a text or a list of texts")
    found: list[list[int]] = []
    for i, word in enumerate([words] if isinstance(words, str) else words):
        if not isinstance(word, str) or not word.strip():
            raise ValueError(f"bad_words[{i}] is {word!r:.80}, expected a text that is not empty")
        first = tokenizer.plain_ids(word.lstrip()).tolist()
        spaced = tokenizer.plain_ids(" " + word.lstrip()).tolist()
        found.append(first)
        if spaced != first:
            found.append(spaced)
    return found
