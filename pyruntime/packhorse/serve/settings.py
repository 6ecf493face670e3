"""Settings of a server: each as a flag, an environment variable and a line of TOML."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from packhorse.load_arguments import cores
from packhorse.load_options import MACHINE, ServedCall, TextLoadOptions
from packhorse.option_fields import Option, hints_of, kind_of, kinds_of, said

Made = TypeVar("Made")

ENVIRONMENT = "PACKHORSE_"  # what names of environment variables begin with


def setting(default: Any, help: str, panel: str, metavar: str | None = None) -> Any:
    """A field of `Settings`. `help` and `panel` are what `packhorse serve --help` says."""
    metadata = {"option": Option(help, help, panel, metavar=metavar)}
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


# The options of loading that are settings, by their names as settings. The device is a setting of
# its own: there may be several.
LOADING: Mapping[str, Field[Any]] = {
    said(one).setting or one.name: one
    for one in fields(TextLoadOptions)
    if said(one).help and one.name != "device"
}


@dataclass(frozen=True)
class ModelSettings:
    """A model that is served under a name. What is not said is as `Settings` says.

    options  those of `TextModel.load`. In TOML, and in the body of POST /models, they stand beside
             the other settings
    """

    name: str
    path: str
    device: tuple[str, ...] | None = None
    adapter: tuple[str, ...] = ()
    options: ServedCall = field(default_factory=lambda: ServedCall())

    @classmethod
    def read(cls, given: str | Mapping[str, Any]) -> ModelSettings:
        """The settings that "PATH", "NAME=PATH" or a table of TOML says. Raises ValueError."""
        if isinstance(given, str):
            name, equals, path = given.partition("=")
            if not equals:
                name, path = "", given
            given = {"name": name, "path": path}
        values = _checked(cls, given, "models")
        if not values.get("path"):
            raise ValueError(f"models: {dict(given)!r:.80} has no path")
        values["name"] = values.get("name") or default_name(values["path"])
        return _made(cls, values)


def default_name(path: str) -> str:
    """The name of a model that was given none: that of the hub, or of its folder or file."""
    if not Path(path).exists():
        return path
    return Path(path).resolve().stem if Path(path).is_file() else Path(path).resolve().name


_POSITIVE = (
    "max_wait_s",
    "request_timeout_s",
    "generation_timeout_s",
    "receive_timeout_s",
    "write_timeout_s",
    "keep_alive_s",
    "max_batch_ms",
    "max_queue_tokens",
    "max_client_batch_size",
    "payload_limit",
    "max_connections",
    "max_body_bytes",
    "default_new_tokens",
    "max_client_sequences",
    "max_body_values",
    "max_client_images",
    "max_image_bytes",
    "max_image_pixels",
    "image_url_timeout_s",
    "max_audio_bytes",
)
_MOST_FIELD_BYTES = 65_536  # bytes of a form beside its file of audio
_EXACT = ("api_key",)  # texts that are taken as they are, and shown to nobody
_SECRET = ("api_key", "api_key_file")  # if blank in the environment, a mistake: not left out
_LIMITS = "Limits"
_NETWORK = "Network"
_SAFETY = "Who may use it"
_OPERATION = "Operation"


@dataclass(frozen=True)
class Settings:
    """All settings of a server. Made by `Settings.load`."""

    models: tuple[ModelSettings, ...] = ()

    host: str = setting("127.0.0.1", "Address to listen at; 0.0.0.0: all of them.", _NETWORK)
    port: int = setting(8000, "Port to listen at; 0: any that is free.", _NETWORK)
    uds: str | None = setting(
        None, "Path of a Unix socket to listen at, in place of host and port.", _NETWORK, "PATH"
    )
    root_path: str = setting("", "Prefix that a proxy puts before all paths.", _NETWORK, "PATH")
    ssl_certfile: str | None = setting(
        None, "Certificate chain (PEM); with it the server speaks HTTPS.", _NETWORK, "FILE"
    )
    ssl_keyfile: str | None = setting(None, "Private key of the certificate.", _NETWORK, "FILE")
    forwarded_allow_ips: str = setting(
        "127.0.0.1",
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, with commas between.",
        _NETWORK,
        "IPS",
    )

    device: tuple[str, ...] = setting(
        ("cpu",),
        "cpu, cuda or cuda:1; several, repeated or with commas between, each get a replica of "
        "every model.",
        MACHINE,
    )
    adapter: tuple[str, ...] = setting(
        (),
        "A LoRA adapter, served under a name of its own: NAME=FOLDER, or MODEL:NAME=FOLDER where "
        "several models generate. May be repeated.",
        MACHINE,
        "ADAPTER",
    )
    options: ServedCall = field(default_factory=lambda: ServedCall())  # for all models they suit

    max_batch_ms: float = setting(
        50.0,
        "Longest time of one batch: on slow devices batches hold fewer tokens.",
        _LIMITS,
        "MS",
    )
    max_wait_s: float = setting(
        10.0,
        "Requests that would wait longer for their turn are refused at once (429).",
        _LIMITS,
        "SECONDS",
    )
    max_queue_tokens: int = setting(
        2_000_000, "Requests are refused (429) when so many tokens wait for a model.", _LIMITS
    )
    request_timeout_s: float = setting(
        60.0, "Requests that are not answered in this time fail (504).", _LIMITS, "SECONDS"
    )
    generation_timeout_s: float = setting(
        600.0,
        "Texts that are generated end after this time with what they have.",
        _LIMITS,
        "SECONDS",
    )
    receive_timeout_s: float = setting(
        20.0,
        "Requests that have not come as a whole in this time, from their first byte, fail (504), "
        "or their connection is closed.",
        _LIMITS,
        "SECONDS",
    )
    write_timeout_s: float = setting(
        30.0,
        "Connections whose clients do not read their answer for so long are closed.",
        _LIMITS,
        "SECONDS",
    )
    keep_alive_s: float = setting(
        75.0, "Connections without a request for so long are closed.", _LIMITS, "SECONDS"
    )
    max_connections: int | None = setting(
        None,
        "Most connections at once (503 for more, where none is idle); by default what the limit of "
        "open files allows, at most 4096.",
        _LIMITS,
    )
    max_body_bytes: int | None = setting(
        None,
        "Most bytes that the bodies of all requests have at once (503 for more); by default 16 "
        "times the payload limit, and at least twice max_audio_bytes.",
        _LIMITS,
    )
    max_client_batch_size: int = setting(1024, "Most texts of one request (413 for more).", _LIMITS)
    payload_limit: int = setting(
        8_000_000, "Most bytes of the body of a request (413 for more).", _LIMITS
    )
    max_new_tokens: int | None = setting(
        None, "Most tokens that one request may generate; by default the context.", _LIMITS
    )
    default_new_tokens: int = setting(
        1024, "Most tokens of a chat's answer where a request says nothing about it.", _LIMITS
    )
    max_client_sequences: int = setting(
        256, "Most texts that one request may generate: prompts times n (413 for more).", _LIMITS
    )
    max_body_values: int = setting(
        300_000,
        "Most values in the JSON of a body; a list or an object counts as four (413 for more).",
        _LIMITS,
    )
    max_client_images: int = setting(64, "Most images of one request (413 for more).", _LIMITS)
    max_image_bytes: int = setting(
        8_000_000, "Most bytes of the file of an image (413 for more).", _LIMITS
    )
    max_image_pixels: int = setting(
        1 << 25,
        "Most pixels of an image (413 for more), and of all that four threads of one model decode "
        "at a time.",
        _LIMITS,
    )
    max_audio_bytes: int = setting(
        26_214_400,
        "Most bytes of a file of audio (413 for more). The payload limit does not bound it.",
        _LIMITS,
    )
    image_url_timeout_s: float = setting(
        5.0, "Longest time of fetching an image from its URL.", _LIMITS, "SECONDS"
    )
    auto_truncate: bool = setting(
        False, "Cut texts that are too long, where a request says nothing about it.", _LIMITS
    )

    api_key: tuple[str, ...] = setting(
        (), "Requests must bring this key as a bearer token; may be repeated.", _SAFETY, "KEY"
    )
    api_key_file: str | None = setting(None, "A file of such keys, one a line.", _SAFETY, "FILE")
    prefix_cache: str = setting(
        "key",
        "Which prompts share the cache of their common beginning: those of the same API key (key), "
        "all (shared) or none (off).",
        _SAFETY,
        "WHOSE",
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "A name under which the server may be asked, beside localhost and numbers; with it, or "
        "where the server listens at localhost, others are refused. *: any.",
        _SAFETY,
        "NAME",
    )
    cors_allow_origin: tuple[str, ...] = setting(
        (), "Origins whose pages may use the server from a browser; *: all.", _SAFETY, "ORIGIN"
    )
    allow_image_urls: tuple[str, ...] = setting(
        (),
        "A host from which images may be fetched by their URLs: NAME, NAME:PORT, *.DOMAIN, or an "
        "address or network (10.0.0.0/8), without which no private address is asked. May be "
        "repeated; by default images come in the body alone.",
        _SAFETY,
        "HOST",
    )
    page: bool = setting(
        True, "Serve a page at / on which people try the models in a browser.", _SAFETY
    )
    admin: bool = setting(
        False, "Let clients load, unload and reload models (POST and DELETE /models).", _SAFETY
    )

    log_level: str = setting(
        "info", "debug, info, warning or error; warning: no line for each request.", _OPERATION
    )
    log_format: str = setting(
        "auto",
        "json (one object a line), text for people, or auto: text where stderr is a terminal.",
        _OPERATION,
    )
    otlp_endpoint: str | None = setting(
        None, "Where to send traces (OTLP over HTTP); needs opentelemetry.", _OPERATION, "URL"
    )
    shutdown_timeout_s: float = setting(
        30.0, "Longest time for running requests to finish on SIGTERM.", _OPERATION, "SECONDS"
    )
    tokenization_workers: int | None = setting(
        None,
        "Threads that tokenize, and threads or processes that decode images; by default one for "
        "each core and a quarter more, of those that tokenize up to 4.",
        _OPERATION,
    )
    image_processes: int | None = setting(
        None,
        "Processes of 25 to 70 MB that decode images of a model, in place of threads; 0: none. "
        "By default models on a GPU have as many as there would be threads.",
        _OPERATION,
    )

    @property
    def body_bytes(self) -> int:
        """Most bytes that the bodies of all requests have at once."""
        audio = self.max_audio_bytes + _MOST_FIELD_BYTES
        return self.max_body_bytes or max(16 * self.payload_limit, 2 * audio)

    @property
    def audio_body_bytes(self) -> int:
        """Most bytes of a body with a file of audio."""
        return min(self.max_audio_bytes + _MOST_FIELD_BYTES, self.body_bytes)

    @property
    def preparing_threads(self) -> int:
        """Threads that tokenize texts."""
        return self.tokenization_workers or min(4, cores())

    def image_readers(self, device: str) -> tuple[int, bool]:
        """(how many images of a model on this device are decoded at a time, whether processes do
        it). An image takes many times what a text does, and there are more than cores, for those
        that wait. On a CPU the model takes the cores, and threads hardly wait for each other."""
        count, apart = self.image_processes, bool(self.image_processes)
        if count is None and device != "cpu":
            # A program that brings Python along is no interpreter that could be started.
            apart = bool(sys.executable) and not getattr(sys, "frozen", False)
        return count or self.tokenization_workers or cores() + cores() // 4, apart

    @classmethod
    def load(
        cls,
        models: Sequence[str | ModelSettings] = (),
        config: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **given: Any,
    ) -> Settings:
        """Takes each setting as given, else from the environment, the file or the default.

        models       "PATH", "NAME=PATH" or settings each; they replace those of environment and
                     file
        config       a TOML file; None: the one that PACKHORSE_CONFIG names, if it does
        environment  None: `os.environ`
        given        by name; None: not given

        Raises ValueError for a name or value that is not acceptable, FileNotFoundError.
        """
        environment = os.environ if environment is None else environment
        config = environment.get(f"{ENVIRONMENT}CONFIG") if config is None else config
        values = {} if config is None else _of_file(cls, Path(config))
        values |= _of_environment(cls, environment)
        values |= _checked(cls, {k: v for k, v in given.items() if v is not None}, "settings")
        if models:
            values["models"] = models
        chosen = tuple(
            one if isinstance(one, ModelSettings) else ModelSettings.read(one)
            for one in values.pop("models", ())
        )
        if (path := values.get("api_key_file")) is not None:
            values["api_key"] = (*values.get("api_key", ()), *_keys_of(path))
        names = [one.name for one in chosen]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"models: {names.count(name)} are named {name!r}: give each a name, NAME=PATH"
                )
        return _made(cls, {**values, "models": chosen}).checked()

    def checked(self) -> Settings:
        """Itself. Raises ValueError for values that are not acceptable together."""
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together: give both")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, expected a positive number")
        if self.max_body_bytes is not None and self.max_body_bytes < self.payload_limit:
            raise ValueError(
                f"max_body_bytes is {self.max_body_bytes}, expected at least the payload_limit, "
                f"{self.payload_limit}"
            )
        for key in self.api_key:
            if not key.strip():
                raise ValueError(
                    f"api_key (--api-key, {ENVIRONMENT}API_KEY) is blank: give a key, or none"
                )
            if key != key.strip() or not key.isprintable():
                raise ValueError("api_key has spaces around it, or characters that are no text")
        if (self.image_processes or 0) < 0:
            raise ValueError(f"image_processes is {self.image_processes}, expected 0 or more")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}, expected 0 to 65535")
        for name, allowed in (
            ("log_level", ("debug", "info", "warning", "error")),
            ("log_format", ("auto", "json", "text")),
            ("prefix_cache", ("key", "shared", "off")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r:.80}, expected {' or '.join(allowed)}"
                )
        return self

    def of_model(self, model: ModelSettings) -> ModelSettings:
        """The settings of a model, with those that it shares with all others."""
        device = self.device if model.device is None else model.device
        return replace(model, device=device, options={**self.options, **model.options})


def settings_of(cls: type) -> dict[str, tuple[Field[Any], Any]]:
    """The settings of a server or of a model by their names, each a field and its type: those of
    the class, and options of loading."""
    hints, of_loading = get_type_hints(cls), hints_of(TextLoadOptions)
    own = {one.name: (one, hints[one.name]) for one in fields(cls) if one.name != "options"}
    return own | {name: (one, of_loading[one.name]) for name, one in LOADING.items()}


def _checked(cls: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values in the types of the settings of these names. Raises ValueError."""
    known = settings_of(cls)
    values = {}
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known)
            raise ValueError(f"{where}: there is no setting {name!r:.80}, expected one of {names}")
        one, hint = known[name]
        check = said(one).check
        if value is not None:
            found = value if name == "models" else convert(name, hint, value)
            values[name] = found if check is None else check(name, found)
    return values


def _made(cls: Callable[..., Made], values: Mapping[str, Any]) -> Made:
    """The settings, whose options of loading are put together."""
    options = {one.name: values[name] for name, one in LOADING.items() if name in values}
    own = {name: value for name, value in values.items() if name not in LOADING}
    return cls(**own, options=options)


def convert(name: str, hint: Any, value: Any) -> Any:
    """A value of TOML, of the environment or of a flag as a setting has it. Raises ValueError."""
    kind = kind_of(hint)
    if any(get_origin(one) is tuple for one in (hint, *get_args(hint))):
        several = [value] if isinstance(value, str) else value
        if isinstance(several, Sequence) and all(isinstance(one, str) for one in several):
            if name in _EXACT:
                return tuple(several)
            return tuple(part.strip() for one in several for part in one.split(",") if part.strip())
        shown = f"a {type(value).__name__}" if name in _EXACT else f"{value!r:.80}"
        raise ValueError(f"{name} is {shown}, expected texts")
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if (found := words.get(str(value).lower())) is not None:
            return found
    elif type(value) in kinds_of(hint):
        return value
    elif kind in (int, float) and isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return kind(value)
        except ValueError:
            pass
    raise ValueError(f"{name} is {value!r:.80}, expected {kind.__name__}")


def _of_environment(cls: type, environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in settings_of(cls):
        value = environment.get(f"{ENVIRONMENT}{name.upper()}")
        if value or (value == "" and name in _SECRET):
            found[name] = value.split(",") if name == "models" else value
    return _checked(cls, found, "environment")


def _keys_of(path: str) -> list[str]:
    """The lines of a file that are not empty. Raises ValueError where there is none, OSError."""
    if not path.strip():
        raise ValueError("api_key_file is blank: give a path, or none")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError(f"api_key_file: there is no key in {path}")
    return found


def _of_file(cls: type, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ModuleNotFoundError:
            raise ValueError(f"{path}: Python 3.10 needs the package tomli to read it") from None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        return _checked(cls, values, "the file")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
