"""JPEG files of many sizes sent to `packhorse serve`: images per second, beside what the host and
the device could do.

    python benchmarks/image/serving.py [--device DEVICE] [--size tiny | base | large]
        [--model FOLDER] [--clients N] [--seconds S]

Three rates are measured, one after the other:

- the host alone: files are decoded, resized and made patches on all cores, and nothing else runs;
- the device alone: the encoder runs patches that are there already, in full batches;
- the server: clients, which are threads of other processes, send one image a request as a data URL.

The server cannot be faster than the slower of the first two; the last line says which it is, and
how near the server comes. On a CPU all three share the cores: the tiny encoder, which takes next to
no time, shows what the host's own work costs. With a GPU `nvidia-smi` says how busy it was. The
processor time of clients is counted, because they take cores that the server has.
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
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packhorse.image import ImageModel, ImageProcessor, decode
from packhorse.patches import join
from preprocess import best, photo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from servers import free_port

# Sizes of pictures on the web, and photos of phones among them.
MIX = [(500, 375)] * 6 + [(1024, 768)] * 3 + [(1920, 1080)] * 2 + [(4032, 3024)]
# Hidden size, layers, heads, size of the feed-forward block, side of a patch.
SIZES = {
    "tiny": (32, 1, 1, 32, 32),
    "base": (768, 12, 12, 3072, 16),
    "large": (1024, 24, 16, 4096, 14),
}
_TICKS = os.sysconf("SC_CLK_TCK")
_CLIENTS_OF_A_PROCESS = 8
_CORES = len(os.sched_getaffinity(0))


def files() -> list[bytes]:
    made = []
    for width, height in MIX:
        file = io.BytesIO()
        photo(width, height).save(file, "JPEG", quality=85)
        made.append(file.getvalue())
    return made


def random_model(folder: Path, size: str) -> Path:
    """CLIP's encoder of images of 224 x 224 pixels, of random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    hidden, layers, heads, inner, patch = SIZES[size]
    config = transformers.CLIPVisionConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        patch_size=patch,
        projection_dim=16,
    )
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


def send_all(port: int, clients: int, seconds: float) -> tuple[int, float]:
    """(images answered, processor seconds of the clients), of as many processes as are needed."""
    context = multiprocessing.get_context("fork")
    found: Any = context.Queue()
    bodies = bodies_of(files())
    counts = [_CLIENTS_OF_A_PROCESS] * (clients // _CLIENTS_OF_A_PROCESS)
    counts += [rest] if (rest := clients % _CLIENTS_OF_A_PROCESS) else []
    senders = [
        context.Process(target=send, args=(port, bodies[i:] + bodies[:i], count, seconds, found))
        for i, count in enumerate(counts)
    ]
    for sender in senders:
        sender.start()
    answers = [found.get() for _ in senders]
    for sender in senders:
        sender.join()
    return sum(count for count, _ in answers), sum(spent for _, spent in answers)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
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


def host_rate(folder: Path, seconds: float) -> float:
    """Says what reading takes on one thread; returns images per second on all cores."""
    batch = files()
    processor = ImageProcessor.from_folder(folder, threads=1)
    patch = 32

    def read(data: bytes) -> None:
        processor.patches([data], patch)

    times = best(
        seconds / 2,
        {
            "decoding": lambda: [decode(data) for data in batch],
            "whole": lambda: [read(data) for data in batch],
        },
    )
    with ThreadPoolExecutor(_CORES) as pool:
        many = batch * max(4, _CORES)
        every = best(seconds / 2, {"all": lambda: list(pool.map(read, many))})
    rate = len(many) / every["all"] * 1e3
    one = times["whole"] / len(batch)
    share = times["decoding"] / times["whole"]
    print(
        f"host alone: {rate:.1f} images/s read on {_CORES} cores; {one:.1f} ms an image on one, of "
        f"which decoding takes {share:.0%}",
        flush=True,
    )
    return rate


def device_rate(folder: Path, device: str, seconds: float) -> float:
    """Images per second of the encoder alone, of patches that are there already."""
    with ImageModel.load(folder, device) as model:
        one = model.patches(files()[:1])
        batch = join([one] * min(64, model.session.max_tokens // (one.num_patches + 1)))
        times = best(seconds, {"run": lambda: model.embed(batch)})
    rate = batch.num_images / times["run"] * 1e3
    print(f"{device} alone: {rate:.1f} images/s in batches of {batch.num_images}", flush=True)
    return rate


@contextmanager
def watched(device: str) -> Iterator[list[float]]:
    """Percents of time that a GPU was busy, five a second; empty where nothing says so. Complete
    at the end."""
    found: list[float] = []
    if not device.startswith("cuda") or shutil.which("nvidia-smi") is None:
        yield found
        return
    index = device.partition(":")[2] or "0"
    command = ["nvidia-smi", "-i", index, "--query-gpu=utilization.gpu", "-lms", "200"]
    watcher = subprocess.Popen(
        [*command, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield found
    finally:
        watcher.terminate()
        text, _ = watcher.communicate()
        found += [float(line) for line in text.split() if line.replace(".", "").isdigit()]


def serving(folder: Path, limits: dict[str, float], options: argparse.Namespace) -> None:
    port = free_port()
    command = [sys.executable, "-m", "packhorse.cli", "serve", f"model={folder}"]
    command += ["--port", str(port), "--log-level", "warning", "--device", options.device]
    process = subprocess.Popen(command)
    try:
        wait_for(port, process)
        send_all(port, options.clients, 2.0)  # is not counted
        before, start = processor_seconds(process.pid), time.monotonic()
        with watched(options.device) as busy:
            count, sending = send_all(port, options.clients, options.seconds)
        passed = time.monotonic() - start
        used = processor_seconds(process.pid) - before
        rate = count / passed
        print(
            f"serving on {options.device}: {rate:.1f} images/s, for which the server takes "
            f"{used / passed / _CORES:.0%} of {_CORES} cores and clients "
            f"{sending / passed / _CORES:.0%}; {used / count * 1e3:.1f} ms of the server an image",
            flush=True,
        )
        if busy:
            print(f"the GPU was busy {statistics.mean(busy):.0f} % of the time", flush=True)
        name = min(limits, key=limits.__getitem__)
        print(
            f"limit: the {name} with {limits[name]:.1f} images/s, of which the server reaches "
            f"{rate / limits[name]:.0%}",
            flush=True,
        )
    finally:
        process.terminate()
        process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--model", type=Path, help="a model of its own in place of --size")
    parser.add_argument("--clients", type=int, default=max(8, 4 * _CORES))
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        folder = options.model or random_model(Path(room), options.size)
        limits = {"host": host_rate(folder, options.seconds / 2)}
        limits["device"] = device_rate(folder, options.device, options.seconds / 4)
        serving(folder, limits, options)


if __name__ == "__main__":
    main()
