from typing import Any

import numpy as np
import numpy.typing as npt

Size = tuple[int, int]
Image = tuple[list[tuple[int, Any]], int, int, int]
Plan = tuple[Image, Size, tuple[int, int], Size, Size]

def resize(
    image: Image, size: Size, resample: str, backend: str, threads: int
) -> npt.NDArray[np.uint8]: ...
def make_features(
    plans: list[Plan],
    values: npt.NDArray[np.float32],
    patch: Size,
    resample: str,
    backend: str,
    out: npt.NDArray[np.float32],
    first: int,
    threads: int,
) -> None: ...
def lend_pixels(memory: npt.NDArray[np.uint8], pixels: int) -> tuple[object, object]: ...
def decode_base64(text: str, begin: int) -> bytes | None: ...
def long_texts(json: bytes, least: int) -> list[tuple[int, int]]: ...
def count_scans(file: bytes) -> int: ...
