from collections.abc import Callable, Sequence
from typing import Any

def device_view(pointer: int, shape: Sequence[int], dtype: str) -> Any: ...

class Operators:
    def __init__(
        self,
        device: str,
        dtype: str,
        threads: int,
        attention: str = "auto",
        skinny: bool = False,
    ) -> None: ...
    @property
    def stream(self) -> int: ...
    def wait_for(self, stream: int) -> None: ...
    @property
    def interleaves_heads(self) -> bool: ...
    def __getattr__(self, operator: str) -> Callable[..., Any]: ...
