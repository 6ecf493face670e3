"""Base of all sessions: a model that is loaded once and used from any thread. `Session.load` gives
an `EncoderSession` or a `GenerationSession`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast, overload

from packhorse_weights.spec import stack_of

from packhorse.device import check_device
from packhorse.dtypes import choose_dtype
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.logs import note_loaded
from packhorse.memory import MemoryPlan
from packhorse.names import AskedDtype, Dtype
from packhorse.option_fields import takes_options
from packhorse.progress_bar import shows_loading

if TYPE_CHECKING:
    from packhorse_weights.checkpoint import Checkpoint, ModelFiles
    from typing_extensions import Unpack

    from packhorse.encoder_session import EncoderSession
    from packhorse.generation.session import GenerationSession
    from packhorse.load_options import LoadCall, SessionCall

Self = TypeVar("Self", bound="Session")


class NativeLifetime(Protocol):
    """A session of the runtime, as far as all have the same methods."""

    def check_open(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...


class Session:
    """A loaded model, made by `Session.load`. After any error a session stays usable.

    One session may be called from many threads at once. After fork(), load a new one. Pickling
    stores the path and the options with which the session was loaded; unpickling loads it again. A
    copy is the session itself.

    `close`, or the end of a `with` block, frees its memory.
    """

    config: dict[str, Any]
    memory_plan: MemoryPlan
    generates: ClassVar[bool]  # True: a `GenerationSession`, which gives nothing else
    _kinds: ClassVar[dict[bool, type[Session]]] = {}  # by `generates`
    _purpose: ClassVar[str]  # what it is for, and how to load a session of the other kind

    def __init_subclass__(cls, generates: bool | None = None) -> None:
        """`generates`: the class is what `Session.load` gives for models that do, or do not."""
        if generates is not None:
            cls.generates = generates
            Session._kinds[generates] = cls

    def __init__(
        self,
        native: NativeLifetime,
        config: dict[str, Any],
        options: LoadOptions,
        memory_plan: MemoryPlan,
        reload: Callable[[], object] | None,
    ) -> None:
        """`reload` loads the same session again and can be pickled. If it is None, the session
        cannot be pickled."""
        self._lifetime = native
        self._options = options
        self._reload = reload
        self.config = config
        self.memory_plan = memory_plan

    @overload
    @classmethod
    def load(  # type: ignore[overload-overlap]
        cls,
        path: ModelPath,
        device: str = ...,
        dtype: AskedDtype | None = ...,
        *,
        kv_tokens: Literal[0],
        progress: bool | None = ...,
        **options: Unpack[SessionCall],
    ) -> EncoderSession: ...
    @overload
    @classmethod
    def load(
        cls,
        path: ModelPath,
        device: str = ...,
        dtype: AskedDtype | None = ...,
        *,
        kv_tokens: int,
        progress: bool | None = ...,
        **options: Unpack[SessionCall],
    ) -> GenerationSession: ...
    @overload
    @classmethod
    def load(
        cls,
        path: ModelPath,
        device: str = ...,
        dtype: AskedDtype | None = ...,
        *,
        kv_tokens: None = ...,
        progress: bool | None = ...,
        **options: Unpack[SessionCall],
    ) -> EncoderSession: ...
    @classmethod
    @shows_loading
    @takes_options(LoadOptions)
    def load(
        cls,
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        *,
        progress: bool | None = None,
        **options: Unpack[LoadCall],
    ) -> Session:
        """Loads a converted folder or a Hugging Face model: an `EncoderSession`, or a
        `GenerationSession` of a causal language model. Type checkers take it for the latter where
        `kv_tokens` is given and not 0; `GenerationSession.load` says so without it.

        path           a folder or weight file; or the name of a repository ("org/model"), which
                       is looked up in the Hugging Face cache and, if it is not there,
                       downloaded through huggingface_hub (docs/models.md)
        {options}
        progress       says on stderr for how many seconds the model has been loading, once they
                       are more than two; None: where it is a terminal

        Raises FileNotFoundError if there is no such model, saying what to run; ValueError if the
        model cannot be read, is not supported, or cannot generate though `kv_tokens` asks for it,
        and if a class of sessions was asked for that is not the model's; MemoryError if the plan
        exceeds the limit or the memory of the device; RuntimeError if the device or the dtype is
        not available.
        """
        return cls._load(path, LoadOptions(device=device, dtype=dtype, **options))

    @classmethod
    def _load(cls: type[Self], path: ModelPath, asked: LoadOptions) -> Self:
        return cls._prepare(path, asked)()

    @classmethod
    def _prepare(
        cls: type[Self], path: ModelPath, asked: LoadOptions, checkpoint: Checkpoint | None = None
    ) -> Callable[[], Self]:
        """Checks all but the weights, and returns the function that loads the session.
        `checkpoint`: what `path` holds, where it has been opened."""
        began = monotonic()
        # Imported late, because running a model does not need the readers of checkpoints.
        from packhorse_weights.checkpoint import files_of, inspect_checkpoint

        check_device(asked.device)
        model = files_of(checkpoint or inspect_checkpoint(path, **asked.reading()))
        generates = asked.generates(path, model.spec)
        dtype = choose_dtype(asked.dtype, asked.device, model.stored_dtype, generates, model.spec)
        kind = Session._kinds[generates]
        if issubclass(cls, kind):
            kind = cls
        elif not issubclass(kind, cls):
            raise ValueError(f"{cls.__name__}.load: {kind._purpose}")
        # Other processes may have another working directory.
        place = Path(path).absolute() if Path(path).exists() else path
        options = asked.of_session(dtype, kind.generates)

        def load() -> Self:
            return note_loaded(kind._open(place, model.in_dtype(dtype), options), place, began)

        return load

    @classmethod
    def _open(cls: type[Self], path: ModelPath, model: ModelFiles, options: LoadOptions) -> Self:
        """A session of these files; of a path that other processes find, too."""
        raise NotImplementedError

    @staticmethod
    def _again(path: ModelPath, options: LoadOptions) -> Callable[[], object]:
        """A function that loads the same session, and can be pickled."""
        return partial(Session.load, path, **options.again())

    if not TYPE_CHECKING:  # type checkers would accept any name if they saw this

        def __getattr__(self, name: str) -> Any:
            of_others = any(hasattr(kind, name) for kind in Session._kinds.values())
            hint = f": {self._purpose}" if of_others and not name.startswith("_") else ""
            owner = type(self).__name__
            raise AttributeError(f"{owner!r} object has no attribute {name!r}{hint}")

    @property
    def hidden_size(self) -> int:
        """The number of values of a token's hidden state."""
        return int(stack_of(self.config)["hidden_size"])

    @property
    def labels(self) -> list[str]:
        """The names of the labels of the model's classifier; empty if it has none."""
        return list(self.config.get("heads", {}).get("classifier", {}).get("labels", ()))

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence that the session takes, in tokens."""
        raise NotImplementedError

    @property
    def device(self) -> str:
        """The device, as given to `load`."""
        return self._options.device

    @property
    def dtype(self) -> Dtype:
        """The dtype of weights and activations."""
        return cast(Dtype, self._options.dtype)

    @property
    def max_tokens(self) -> int:
        """The number of tokens of the largest batch, or of one step of generation."""
        return cast(int, self._options.max_tokens)

    @property
    def max_sequences(self) -> int:
        """The number of sequences of the largest batch, or of those generated at once."""
        return cast(int, self._options.max_sequences)

    def check_open(self) -> None:
        """Raises RuntimeError if the session was closed."""
        self._lifetime.check_open()

    def close(self) -> None:
        """Frees the arena, and the weights unless other sessions share them.

        What a run in another thread or results on the device still use is freed later. Later
        runs raise RuntimeError; attributes stay readable. Closing twice is allowed.
        """
        self._lifetime.close()

    @property
    def closed(self) -> bool:
        """True once the session was closed."""
        return self._lifetime.closed

    def __enter__(self: Self) -> Self:
        self.check_open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        self.check_open()
        if self._reload is None:
            raise TypeError(
                "this session cannot be pickled: it was not made by Session.load, so there is no "
                "path to load it from again"
            )
        return self._reload, ()

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, _memo: object) -> Self:
        return self
