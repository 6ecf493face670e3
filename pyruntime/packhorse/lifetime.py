"""How a session is closed, copied, and sent to other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Self = TypeVar("Self", bound="SessionLifetime")


class Closable(Protocol):
    """A session of the runtime."""

    def check_open(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...


class SessionLifetime:
    """The methods of `Session` that close, copy and pickle it."""

    def __init__(self, runtime: Closable, reload: Callable[[], object] | None) -> None:
        """`reload` loads the same session again and can be pickled. If it is None, the session
        cannot be pickled."""
        self._runtime = runtime
        self._reload = reload

    def check_open(self) -> None:
        """Raises RuntimeError if the session was closed."""
        self._runtime.check_open()

    def close(self) -> None:
        """Frees the arena, and the weights unless other sessions share them.

        What a run in another thread or results on the device still use is freed later. Later
        runs raise RuntimeError; attributes stay readable. Closing twice is allowed.
        """
        self._runtime.close()

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._runtime.closed

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
