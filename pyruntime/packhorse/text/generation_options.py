"""Options of generated texts: as asked for, else as the model's files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from packhorse.generation.sampling import EarlyStopping, Sampling

if TYPE_CHECKING:
    from packhorse.text.structured import Grammars
    from packhorse.text.tokenizer import TextTokenizer
    from packhorse.text.tool_schema import Tool
    from packhorse.text.tool_use import ToolChoice


class GenerateCall(TypedDict, total=False):
    """Options of `TextModel.generate`, which says what they mean. None: as the model's files say,
    else the default of `packhorse.Sampling`."""

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
    schema: Any
    regex: str | None
    choices: Sequence[str] | None
    grammar: str | None


class ChatCall(GenerateCall, total=False):
    """Options of `TextModel.chat`: those of `generate`, and those of the chat template."""

    tools: Sequence[Tool] | None
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool
    documents: Sequence[Mapping[str, Any]] | None
    chat_template: str | None
    add_generation_prompt: bool
    continue_final_message: bool
    template_args: Mapping[str, Any] | None


FORMS = ("schema", "regex", "choices", "grammar")  # of the output
_NOT_OF_SAMPLING = {"stop", "include_stop", "shown_special_tokens", *FORMS}
_OF_CHANCE = {"top_k": 0, "top_p": 1, "min_p": 0}
CHAT_OPTIONS = frozenset(ChatCall.__annotations__.keys() - GenerateCall.__annotations__.keys())


def check_options(method: str, options: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for an option that there is not, as Python itself would."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")


def _flag(name: str, value: object) -> bool:
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


class RequestOptions:
    """What each request of one call is submitted with.

    defaults  of the model's files, by names of `Sampling`
    n         sequences that are wanted of each prompt
    options   of `GenerateCall`, checked by `check_options`
    """

    def __init__(
        self,
        defaults: Mapping[str, Any],
        tokenizer: TextTokenizer,
        grammars: Grammars,
        n: int,
        options: Mapping[str, Any],
    ) -> None:
        from packhorse.text.stop_strings import check_stops

        given = {name: value for name, value in options.items() if value is not None}
        settings = {name: given[name] for name in given.keys() - _NOT_OF_SAMPLING}
        defaults = dict(defaults)
        if given.get("num_beams", 1) > 1 or defaults.get("num_beams", 1) > 1:
            for name in ("temperature", *_OF_CHANCE):
                defaults.pop(name, None)  # beam search leaves nothing to chance
        settings = {**defaults, **settings, "n": n}
        self.include_stop = _flag("include_stop", given.get("include_stop", False))
        self.shown = _special_tokens(tokenizer, given.get("shown_special_tokens", ()))
        self.stops: list[str] = []
        stop_ids = list(settings.get("stop_ids", ()))
        for stop in check_stops(given.get("stop")):
            token = tokenizer.id_of(stop)
            if token is not None and token in tokenizer.special_ids:
                stop_ids.append(token)  # the texts of special tokens are in no output
            else:
                self.stops.append(stop)
        self._settings = settings | {"stop_ids": stop_ids}
        Sampling(**self._settings)  # checks it
        if not settings.get("temperature"):
            for name, neutral in _OF_CHANCE.items():
                if given.get(name, neutral) != neutral and "temperature" not in given:
                    raise ValueError(
                        f"{name} is {given[name]}, but the most probable token is taken each time: "
                        "give a temperature above 0"
                    )
        self._grammars = grammars
        self._form = {name: given.get(name) for name in FORMS}
        self._mask = grammars.make(**self._form)

    def sampling(self) -> Sampling:
        """For one request; its mask is its own."""
        mask = None if self._mask is None else self._mask.fork()
        return Sampling(**self._settings, mask=mask)
