"""Any number of items, in chunks whose preparation runs ahead of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Prepared = TypeVar("Prepared")


def prepare_ahead(
    items: Iterable[Item], size: int, prepare: Callable[[list[Item], int], Prepared]
) -> Iterator[tuple[list[Item], Prepared]]:
    """Yields (chunk of up to `size` items, prepare(chunk, number of its first item)) in order.

    While one chunk is in use, a thread prepares the next one. `items` is read by the caller's own
    thread, up to two chunks ahead.
    """
    iterator = iter(items)
    chunk, following = list(islice(iterator, size)), list(islice(iterator, size))
    if not following:
        if chunk:
            yield chunk, prepare(chunk, 0)
        return
    from concurrent.futures import ThreadPoolExecutor  # here: `import packhorse` stays light

    first = 0
    with ThreadPoolExecutor(1, "packhorse-text") as executor:
        future = executor.submit(prepare, chunk, first)
        while chunk:
            prepared = future.result()
            first += len(chunk)
            if following:
                future = executor.submit(prepare, following, first)
            yield chunk, prepared
            chunk, following = following, list(islice(iterator, size))
