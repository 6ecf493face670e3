"""JPEG files of many sizes sent to `packhorse serve`: images per second, and where the host's time
goes.

    python benchmarks/image/serving.py [--device DEVICE] [--model FOLDER] [--clients N]
        [--seconds S]

Without `--model` the encoder has one layer, which takes next to no time: what is measured is the
limit that the host sets to any device. With a model on a GPU it shows how near to that limit they
are together. Clients are threads of another process, and send one image a request, as a data URL;
their processor time is counted, too, because they take the cores that the server has. Reading
(decoding, resizing, patches) is timed alone on one thread, and its share is that of the server's
processor time.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from packhorse.image import ImageProcessor, decode
from preprocess import best, photo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from servers import free_port

# Sizes of pictures on the web, and photos of phones among them.
MIX = [(500, 375)] * 6 + [(1024, 768)] * 3 + [(1920, 1080)] * 2 + [(4032, 3024)]
_TICKS = os.sysconf("SC_CLK_TCK")


def files() -> list[bytes]:
    made = []
    for width, height in MIX:
        file = io.BytesIO()
        photo(width, height).save(file, "JPEG", quality=85)
        made.append(file.getvalue())
    return made


def tiny_model(folder: Path) -> Path:
    """CLIP's encoder of images of 224 x 224 pixels, of one narrow layer."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.CLIPVisionConfig(**sizes, intermediate_size=32, projection_dim=16)
    transformers.CLIPVisionModelWithProjection(config).save_pretrained(folder)
    settings = {"image_processor_type": "CLIPImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def bodies_of(batch: list[bytes]) -> list[str]:
    """Requests for vectors of one image each."""
    urls = ["data:image/jpeg;base64," + base64.b64encode(data).decode() for data in batch]
    return [json.dumps({"model": "model", "input": [{"image": url}]}) for url in urls]


def processor_seconds(pid: int) -> float:
    """The time that a process had on processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def send(port: int, bodies: list[str], clients: int, seconds: float, found: Any) -> None:
    """Sends images from `clients` threads; puts how many were answered, and the processor time that
    sending took."""
    turns, end = itertools.count(), time.monotonic() + seconds
    answered: list[int] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        count = 0
        while time.monotonic() < end:
            body = bodies[next(turns) % len(bodies)]
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            count += 1
        answered.append(count)

    before = time.process_time()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put((sum(answered), time.process_time() - before))


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError("the server did not start")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server did not answer")


def reading(folder: Path, seconds: float) -> float:
    """Says what reading takes, on one thread and on all; returns its milliseconds an image."""
    batch = files()
    one, every = (ImageProcessor.from_folder(folder, threads=n) for n in (1, 0))
    times = best(
        seconds,
        {
            "decoding": lambda: [decode(data) for data in batch],
            "whole": lambda: one(batch),
            "all threads": lambda: every(batch),
        },
    )
    rate = {name: len(batch) / ms * 1e3 for name, ms in times.items()}
    share = times["decoding"] / times["whole"]
    print(
        f"reading: {rate['whole']:.1f} images/s on one thread, of whose time decoding takes "
        f"{share:.0%}; {rate['all threads']:.1f} on {os.cpu_count()}",
        flush=True,
    )
    return times["whole"] / len(batch)


def serving(folder: Path, read_ms: float, options: argparse.Namespace) -> None:
    port = free_port()
    command = [sys.executable, "-m", "packhorse.cli", "serve", f"model={folder}"]
    command += ["--port", str(port), "--log-level", "warning", "--device", options.device]
    process = subprocess.Popen(command)
    try:
        wait_for(port, process)
        context = multiprocessing.get_context("fork")
        found: Any = context.Queue()
        bodies = bodies_of(files())
        for seconds in (1.0, options.seconds):  # the first is not counted
            before, start = processor_seconds(process.pid), time.monotonic()
            sender = context.Process(
                target=send, args=(port, bodies, options.clients, seconds, found)
            )
            sender.start()
            count, sending = found.get()
            sender.join()
            passed = time.monotonic() - start
        used = processor_seconds(process.pid) - before
        cores = os.cpu_count() or 1
        print(
            f"serving on {options.device}: {count / passed:.1f} images/s, for which the server "
            f"takes {used / passed / cores:.0%} of {cores} cores and clients "
            f"{sending / passed / cores:.0%}; {used / count * 1e3:.1f} ms of the server an image, "
            f"of which reading {read_ms:.1f}",
            flush=True,
        )
    finally:
        process.terminate()
        process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        folder = options.model or tiny_model(Path(room))
        serving(folder, reading(folder, options.seconds / 2), options)


if __name__ == "__main__":
    main()
