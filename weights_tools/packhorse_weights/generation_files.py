"""Settings of generation in a model's files: tokens that end a text, defaults, chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from packhorse_weights.checkpoint import embeds_by_files, model_folder
from packhorse_weights.config import Config, language_part, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import files_below, has_file, read_bytes
from packhorse_weights.formats.ctranslate2_folder import ctranslate2_settings, find_ctranslate2
from packhorse_weights.formats.gguf.model import find_gguf, open_generation
from packhorse_weights.generation_settings import older_fields, read_settings
from packhorse_weights.hub.cache import find_model
from packhorse_weights.spec import Spec
from packhorse_weights.tokenizers.files import find_settings
from packhorse_weights.tokenizers.settings import chat_tokens
from packhorse_weights.tokenizers.special_tokens import SpecialTokens
from packhorse_weights.vocabulary import why_no_lm_head

TASKS = "task_specific_params"


@dataclass(frozen=True)
class GenerationFiles:
    """Settings of generation in a model's files. eos_ids: tokens that end a text. defaults:
    settings, as `read_settings` names them. chat_templates: by name, Jinja; the usual one is
    "default". special_tokens: texts by the names that chat templates give them, such as
    "bos_token". decoder_start: token with which a decoder begins that has an encoder. tasks:
    `task_specific_params` of config.json, as they stand there (`task_settings`)."""

    eos_ids: tuple[int, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, Any] = field(default_factory=dict)
    decoder_start: int | None = None
    tasks: Mapping[str, Any] = field(default_factory=dict)
    where: str = field(default="", compare=False)  # the file of the tasks

    def task_settings(self, name: str) -> tuple[str, dict[str, Any]]:
        """(the text that a task puts before another, its settings as `read_settings` names them);
        nothing for a task that the files do not name. Raises CheckpointError."""
        found = self.tasks.get(name)
        if not isinstance(found, dict):
            return "", {}
        task = Config(found, f"{self.where}: task_specific_params: {name}")
        prefix = found.get("prefix")
        return prefix if isinstance(prefix, str) else "", read_settings(task)


def generates(
    path: str | PathLike[str],
    spec: Spec,
    kv_tokens: int | None,
    reranker: object = None,
    pooling: object = None,
    normalize: bool | None = None,
    max_predictions: int = 0,
    *,
    revision: str | None = None,
) -> bool:
    """True if a model is to generate rather than to embed, score or predict.

    The arguments are those of `Session.load`. Any of the optional ones asks for something else than
    generation.

    Raises CheckpointError where it cannot generate, and `kv_tokens` asks for it.
    """
    if kv_tokens == 0:
        return False
    heads = spec.get("heads")
    reason = None
    asked = any(one is not None for one in (reranker, pooling, normalize)) or max_predictions > 0
    if "template" in spec or asked:
        reason = "reranker, pooling, normalize and max_predictions are for other sessions"
    elif not isinstance(heads, dict) or "lm" not in heads:
        reason = "it has no head of a causal language model"
        if kv_tokens is not None:
            reason += _why_no_head(find_model(path, revision))
    if reason is not None and kv_tokens is not None:
        raise CheckpointError(
            f"kv_tokens is {kv_tokens}, but {path} is not loaded for generation: {reason}"
        )
    return reason is None


def _why_no_head(path: Path) -> str:
    if embeds_by_files(path):
        return " that is used: its files say how it pools (modules.json, 1_Pooling, pooling_type)"
    root = path if path.is_dir() else path.parent
    config = language_part(optional_config(model_folder(root) / "config.json"))
    return f": {why_no_lm_head(config)}" if config.fields else ""


def read_generation(
    path: str | PathLike[str], *, revision: str | None = None, settings: bool = True
) -> GenerationFiles:
    """Reads the files of the model at `path`; it and `revision`: as in `inspect_checkpoint`.
    Without `settings` there are no defaults, and nothing that they ask for is refused.

    Raises CheckpointError for what is not usable or not supported.
    """
    path = find_model(path, revision)
    if (gguf := find_gguf(path)) is not None:
        return _of_gguf(gguf, settings)
    root = path if path.is_dir() else path.parent
    folder = model_folder(root)
    file = folder / "generation_config.json"
    where = str(file if has_file(file) else folder / "config.json")
    generation = Config(generation_config(folder) or {}, where)
    tokenizer = optional_config(folder / "tokenizer_config.json")
    return GenerationFiles(
        _token_ids(generation, "eos_token_id"),
        read_settings(generation) if settings else {},
        _chat_templates(folder, tokenizer),
        _special_tokens(folder),
        _decoder_start(generation, optional_config(folder / "config.json")),
        _tasks(folder),
        str(folder / "config.json"),
    )


def _decoder_start(generation: Config, config: Config) -> int | None:
    """The token with which a decoder begins; as in transformers, that of the beginning of a text
    where no file names it."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        for one in (generation, config):
            if one.fields.get(name) is not None:
                return one.tokens(name, low=0)
    return None


def _tasks(folder: Path) -> dict[str, Any]:
    found = optional_config(folder / "config.json").fields.get(TASKS)
    found = optional_config(folder / "generation_config.json").fields.get(TASKS, found)
    return found if isinstance(found, dict) else {}


def generation_config(path: Path) -> dict[str, Any] | None:
    """Returns generation_config.json of a model folder, or in its place the settings that an older
    config.json has, with the tokens that end a text from config.json if it does not name any
    itself; or what a GGUF file says in place of both. None if a folder says nothing."""
    if path.is_file():
        return open_generation(path)[0]
    if (converted := find_ctranslate2(path)) is not None:
        return ctranslate2_settings(converted)
    file = path / "generation_config.json"
    config = optional_config(path / "config.json").fields
    fields = optional_config(file).fields if has_file(file) else older_fields(config)
    ends = config.get("eos_token_id")
    found = {**fields, "eos_token_id": fields.get("eos_token_id", ends)}
    for name in ("decoder_start_token_id", TASKS):  # a converted folder has no config.json
        if config.get(name) is not None:
            found.setdefault(name, config[name])
    return found if has_file(file) or fields or ends is not None else None


def _of_gguf(path: Path, settings: bool) -> GenerationFiles:
    where = str(path)
    generation, tokenizer = (Config(fields, where) for fields in open_generation(path))
    return GenerationFiles(
        _token_ids(generation, "eos_token_id"),
        read_settings(generation) if settings else {},
        _named_templates(tokenizer),
        {name: text for name, text in tokenizer.fields.items() if name.endswith("_token")},
        generation.tokens("decoder_start_token_id", default=0, low=0)
        if "decoder_start_token_id" in generation.fields
        else None,
    )


def _token_ids(config: Config, name: str) -> tuple[int, ...]:
    value = config.fields.get(name)
    found = value if isinstance(value, list) else [] if value is None else [value]
    for token in found:
        if type(token) is not int or token < 0:
            raise CheckpointError(
                f"{config.where}: {name} is {value!r:.80}, expected a token id or a list of them"
            )
    return tuple(found)


def _named_templates(settings: Config) -> dict[str, str]:
    """Chat templates of tokenizer_config.json, by name."""
    found: dict[str, str] = {}
    value = settings.fields.get("chat_template")
    named = value if isinstance(value, list) else []
    if isinstance(value, str):
        found["default"] = value
    elif value is not None and not all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("template"), str)
        for one in (named or [None])
    ):
        raise CheckpointError(
            f"{settings.where}: chat_template is {value!r:.80}, expected a text or a list of "
            "names and templates"
        )
    return found | {one["name"]: one["template"] for one in named}


def _chat_templates(folder: Path, settings: Config) -> dict[str, str]:
    """Reads files of their own, which come in place of what tokenizer_config.json has, as in
    transformers."""
    files = {"default": folder / "chat_template.jinja"}
    additional = files_below(folder, "additional_chat_templates/*.jinja")
    files |= {path.stem: path for path in additional}
    if found := {name: _text(path) for name, path in files.items() if has_file(path)}:
        return found
    found = _named_templates(settings)
    older = optional_config(folder / "chat_template.json").fields.get("chat_template")
    return found | ({"default": older} if isinstance(older, str) else {})


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None


def _special_tokens(folder: Path) -> dict[str, Any]:
    """The tokens that the files of a tokenizer name, or its class."""
    file = find_settings(folder, folder, None)
    return chat_tokens(SpecialTokens(folder, file.settings, file.names))
