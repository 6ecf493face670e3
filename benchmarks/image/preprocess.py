"""Times of resizing, and of JPEG files made pixel values, beside Pillow and transformers.

    python benchmarks/image/preprocess.py [--seconds S]

Peers are measured where they are installed. Resizing is of one image on one core; files go through
the whole processor, with as many threads as there are cores. Prints the best of several runs, which
alternate.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from packhorse.image import ImageProcessor, ImageSettings, resize
from PIL import Image

RESIZES = [((4032, 3024), (1024, 1024)), ((1920, 1080), (784, 784)), ((800, 600), (336, 336))]
NUMBERS = {"bilinear": 2, "bicubic": 3, "lanczos": 1}
FILES = [((500, 375), 16), ((1920, 1080), 8), ((4032, 3024), 4)]


def photo(width: int, height: int) -> Image.Image:
    """Smooth shapes with noise, which a JPEG of quality 85 makes as large as it makes photos."""
    rows, columns = np.mgrid[:height, :width]
    planes = [
        127 + 100 * np.sin(columns / 37 + rows / 91),
        127 + 90 * np.sin(columns / 13 - rows / 57),
        127 + 80 * np.cos(columns / 201 + rows / 17),
    ]
    noise = np.random.default_rng(0).normal(0, 8, (height, width, 3))
    return Image.fromarray((np.stack(planes, -1) + noise).clip(0, 255).astype(np.uint8))


def best(seconds: float, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The shortest time of each call in milliseconds, of rounds that last `seconds` together."""
    times = {name: float("inf") for name in calls}
    end = time.perf_counter() + seconds
    for round_number in range(1000):
        if round_number > 1 and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], (time.perf_counter() - start) * 1e3)
    return times


def resizing(seconds: float) -> None:
    for (width, height), to in RESIZES:
        image = photo(width, height)
        array = np.asarray(image)
        for name, number in NUMBERS.items():
            calls = {
                "packhorse, pil": partial(resize, array, to, name, backend="pil", threads=1),
                "packhorse, torchvision": partial(resize, array, to, name, threads=1),
                "Pillow": partial(image.resize, to[::-1], number),
            }
            if tensor := torch_resize(array, to, name):
                calls["torchvision"] = tensor
            times = best(seconds, calls)
            figures = ", ".join(f"{who} {ms:.2f} ms" for who, ms in times.items())
            print(f"{width} x {height} to {to[1]} x {to[0]} {name}: {figures}", flush=True)


def torch_resize(array: Any, to: tuple[int, int], name: str) -> Callable[[], Any] | None:
    try:
        import torch
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional
    except ImportError:
        return None
    torch.set_num_threads(1)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)  # channels last, its fastest
    mode = InterpolationMode(name)
    return lambda: functional.resize(tensor, list(to), interpolation=mode, antialias=True)


def files(seconds: float) -> None:
    config = {"image_processor_type": "CLIPImageProcessor"}
    settings = ImageSettings.from_config(config)
    for (width, height), count in FILES:
        file = io.BytesIO()
        photo(width, height).save(file, "JPEG", quality=85)
        batch = [file.getvalue()] * count
        calls: dict[str, Callable[[], Any]] = {
            f"packhorse, {backend}": partial(ImageProcessor(settings, backend=backend), batch)
            for backend in ("torchvision", "pil")
        }
        calls |= {
            f"transformers, {name}": partial(decode_and_process, processor, batch)
            for name, processor in transformers_processors().items()
        }
        times = best(seconds, calls)
        figures = ", ".join(f"{who} {count / ms * 1e3:.0f} /s" for who, ms in times.items())
        print(f"JPEG {width} x {height} ({len(batch[0])} bytes): {figures}", flush=True)


def transformers_processors() -> dict[str, Any]:
    try:
        import torch
        import transformers
    except ImportError:
        return {}
    torch.set_num_threads(os.cpu_count() or 1)
    # transformers 5 has other names for them than 4.
    names = ["CLIPImageProcessor", "CLIPImageProcessorPil"]
    if not hasattr(transformers, names[1]):
        names = ["CLIPImageProcessorFast", "CLIPImageProcessor"]
    made: dict[str, Any] = {}
    for backend, name in zip(("torchvision", "pil"), names, strict=True):
        with suppress(ImportError):  # the first needs torchvision
            made[backend] = getattr(transformers, name)()
    return made


def decode_and_process(processor: Any, batch: list[bytes]) -> Any:
    images = [Image.open(io.BytesIO(data)) for data in batch]
    return processor(images, return_tensors="np")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=2, help="of each comparison")
    parser.add_argument("part", nargs="?", choices=["resize", "files"])
    options = parser.parse_args()
    if options.part != "files":
        resizing(options.seconds)
    if options.part != "resize":
        files(options.seconds)


if __name__ == "__main__":
    main()
