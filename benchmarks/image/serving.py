"""JPEG files of many sizes sent to `packhorse serve`: images per second, beside what the host and
the device could do.

    python benchmarks/image/serving.py [--device DEVICE] [--size tiny | base | large]
        [--model FOLDER] [--clients N] [--processes N] [--seconds S]

Four rates are measured, one after the other:

- the network alone: a server of Python's library, in a process of its own, drops what the clients
  send;
- the host alone: files are decoded, resized and made patches on all cores, and nothing else runs;
- the device alone: the encoder runs patches that are there already, in full batches;
- the server: clients, which are threads of other processes, send one image a request as a data URL.

The server cannot be faster than the slowest of the first three; the last line says which it is, how
near the server comes, and what was used up meanwhile: the GPU (busy for 80 % of the time by
`nvidia-smi`), the cores (90 %, by the server, by clients, which take cores that it has, or by other
programs), or the event loop's thread. Where nothing is, something waits, and the times of a
request, as its answer says them, tell where: a thread that reads an image for much longer than its
processor time waits for locks, and what is left of the whole is waiting for such a thread. A table
says on what the server spends the processor time of an image: its parts are measured one by one on
one thread, the encoder's part in full batches, and HTTP is what is left of the server's time. Page
faults are memory that was given back, and is made anew. On a CPU all share the cores: the tiny
encoder, which takes next to no time, shows what the host's own work costs.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import http.server
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
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from packhorse.image import ImageModel, ImageProcessor, decode
from packhorse.image.file_reader import FileReader
from packhorse.patches import join
from packhorse.serve.http.body import LongBody
from packhorse.serve.models.image_inputs import ImageInput
from preprocess import best, photo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from road import thread_times
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
_STAGES = ("total", "tokenization", "queue", "inference")  # headers of answers, in milliseconds
_MOST = 1 << 30  # bytes of a file, values of a body: no limit
# Shares from which on something counts as used up.
_GPU_FULL, _CORES_FULL, _LOOP_FULL = 0.8, 0.9, 0.9


@cache
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


@cache
def bodies() -> list[str]:
    """Requests for vectors of one image each."""
    urls = ["data:image/jpeg;base64," + base64.b64encode(data).decode() for data in files()]
    return [json.dumps({"model": "model", "input": [{"image": url}]}) for url in urls]


def used_by(pid: int) -> tuple[float, int]:
    """(seconds that a process and its children had on processors, pages of memory that the system
    has made for them)."""
    seconds, faults = 0.0, 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        if pid in (int(path.parent.name), int(fields[1])):
            seconds += (int(fields[11]) + int(fields[12])) / _TICKS
            faults += int(fields[7])
    return seconds, faults


def core_seconds() -> tuple[float, float]:
    """(seconds that our cores have been busy with any process, all their seconds), since the
    system began."""
    busy = whole = 0
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in ours:
            *_, idle, waiting = (int(one) for one in ticks[:5])
            total = sum(int(one) for one in ticks[:8])
            busy, whole = busy + total - idle - waiting, whole + total
    return busy / _TICKS, whole / _TICKS


def send(port: int, first: int, clients: int, seconds: float, found: Any) -> None:
    """Sends images, of which number `first` is the first, from `clients` threads; puts how many
    were answered, the processor time that sending took, and what answers say of times."""
    turns, end = itertools.count(first), time.monotonic() + seconds
    contents = bodies()
    answered: list[int] = []
    said: list[Counter[str]] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        count = 0
        times: Counter[str] = Counter()
        while time.monotonic() < end:
            body = contents[next(turns) % len(contents)]
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            count += 1
            for stage in _STAGES:
                times[stage] += int(response.headers.get(f"x-{stage}-time", 0))
        answered.append(count)
        said.append(times)

    before = time.process_time()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put((sum(answered), time.process_time() - before, sum(said, Counter())))


def send_all(port: int, clients: int, seconds: float) -> tuple[int, float, Counter[str]]:
    """(images answered, processor seconds of the clients, milliseconds of all requests by stages),
    of as many processes as are needed."""
    context = multiprocessing.get_context("fork")
    found: Any = context.Queue()
    bodies()  # made here, so that the processes, which are forked, have them
    counts = [_CLIENTS_OF_A_PROCESS] * (clients // _CLIENTS_OF_A_PROCESS)
    counts += [rest] if (rest := clients % _CLIENTS_OF_A_PROCESS) else []
    senders = [
        context.Process(target=send, args=(port, i, count, seconds, found))
        for i, count in enumerate(counts)
    ]
    for sender in senders:
        sender.start()
    answers = [found.get() for _ in senders]
    for sender in senders:
        sender.join()
    counts, spent, said = zip(*answers, strict=True)
    return sum(counts), sum(spent), sum(said, Counter())


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


def host_rate(folder: Path, seconds: float) -> tuple[float, dict[str, float]]:
    """(images per second read on all cores, milliseconds of an image on one by their use)."""
    batch = files()
    encoded = [body.encode() for body in bodies()]
    urls = [ImageInput("image", json.loads(body)["input"][0]["image"]) for body in encoded]
    images = [decode(data) for data in batch]
    processor = ImageProcessor.from_folder(folder, threads=1)
    patch = 32
    reader = FileReader(processor, patch)
    times = best(
        seconds / 2,
        {
            "JSON": lambda: [LongBody(body, _MOST).read() for body in encoded],
            "base64": lambda: [url.header(reader, url.file(_MOST), _MOST) for url in urls],
            "decoding": lambda: [decode(data) for data in batch],
            "resizing": lambda: [processor.patches([image], patch) for image in images],
        },
    )
    with ThreadPoolExecutor(_CORES) as pool:
        many = batch * max(4, _CORES)

        def read(data: bytes) -> None:
            processor.patches([data], patch)

        every = best(seconds / 2, {"all": lambda: list(pool.map(read, many))})
    rate = len(many) / every["all"] * 1e3
    print(f"host alone: {rate:.1f} images/s read on {_CORES} cores", flush=True)
    return rate, {use: ms / len(batch) for use, ms in times.items()}


class Dropping(http.server.BaseHTTPRequestHandler):
    """Reads requests and answers them with nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class DroppingServer(http.server.ThreadingHTTPServer):
    request_queue_size = 1024  # connections that it has not taken yet


def network_rate(clients: int, seconds: float) -> float:
    """Images per second of clients whose images are dropped."""
    port = free_port()
    dropping = DroppingServer(("127.0.0.1", port), Dropping)
    process = multiprocessing.get_context("fork").Process(target=dropping.serve_forever)
    process.start()
    dropping.socket.close()
    try:
        send_all(port, clients, 0.5)  # is not counted
        start = time.monotonic()
        count, *_ = send_all(port, clients, seconds)
        rate = count / (time.monotonic() - start)
    finally:
        process.terminate()
        process.join()
    print(f"network alone: {rate:.1f} images/s sent by {clients} clients", flush=True)
    return rate


def device_rate(folder: Path, device: str, seconds: float) -> tuple[float, float]:
    """(images per second of the encoder alone, of patches that are there already; milliseconds of
    the processor for each)."""
    with ImageModel.load(folder, device) as model:
        one = model.patches(files()[:1])
        batch = join([one] * min(64, model.session.max_tokens // (one.num_patches + 1)))
        spent: list[float] = []

        def run() -> None:
            before = time.process_time()
            model.embed(batch)
            spent.append(time.process_time() - before)

        times = best(seconds, {"run": run})
    rate = batch.num_images / times["run"] * 1e3
    print(f"{device} alone: {rate:.1f} images/s in batches of {batch.num_images}", flush=True)
    return rate, statistics.median(spent) / batch.num_images * 1e3


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


def serving(
    folder: Path, limits: dict[str, float], uses: dict[str, float], options: argparse.Namespace
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "packhorse.cli", "serve", f"model={folder}"]
    command += ["--port", str(port), "--log-level", "warning", "--device", options.device]
    if options.processes is not None:
        command += ["--image-processes", str(options.processes)]
    process = subprocess.Popen(command)
    try:
        wait_for(port, process)
        send_all(port, options.clients, 2.0)  # is not counted
        (before, faults), start = used_by(process.pid), time.monotonic()
        loop, cores = thread_times(process.pid)["event loop"], core_seconds()
        with watched(options.device) as busy:
            count, sending, times = send_all(port, options.clients, options.seconds)
        passed = time.monotonic() - start
        used, faults = (a - b for a, b in zip(used_by(process.pid), (before, faults), strict=True))
        loop = (thread_times(process.pid)["event loop"] - loop) / passed
        taken, there = (now - then for now, then in zip(core_seconds(), cores, strict=True))
    finally:
        process.terminate()
        process.wait(20)
    ours, all_busy = (used + sending) / passed / _CORES, taken / max(there, 1 / _TICKS)
    print(
        f"serving on {options.device}: {count / passed:.1f} images/s; the server takes "
        f"{used / passed / _CORES:.0%} of {_CORES} cores, clients {sending / passed / _CORES:.0%}, "
        f"other programs {max(0.0, all_busy - ours):.0%}; its event loop {loop:.0%} of one core"
    )
    gpu = statistics.mean(busy) / 100 if busy else None
    if gpu is not None:
        print(f"the GPU was busy {gpu:.0%} of the time")
    total, reading, queued, running = (times[stage] / count for stage in _STAGES)
    print(
        f"time of a request: {total:.0f} ms, of which {reading:.0f} on a thread that reads, "
        f"{queued:.0f} in the queue, {running:.0f} in a batch; {faults / count:.0f} page faults"
    )
    print_uses(uses, used / count * 1e3)
    name = min(limits, key=limits.__getitem__)
    full = {
        "the GPU": gpu is not None and gpu >= _GPU_FULL,
        "the cores": max(ours, all_busy) >= _CORES_FULL,
        "the event loop": loop >= _LOOP_FULL,
    }
    print(
        f"limit: the {name} alone makes {limits[name]:.1f} images/s, of which the server reaches "
        f"{count / passed / limits[name]:.0%}; used up: "
        f"{', '.join(what for what, is_full in full.items() if is_full) or 'nothing'}",
        flush=True,
    )


def print_uses(uses: dict[str, float], whole: float) -> None:
    """A table of the server's processor time of an image, `whole` milliseconds."""
    if whole <= 0:
        print("the system does not say what processor time the server took")
        whole = sum(uses.values())
    print(f"processor time of an image: {whole:.2f} ms")
    for use, ms in {**uses, "HTTP and the rest": whole - sum(uses.values())}.items():
        print(f"  {use:18} {ms:7.2f} ms {ms / whole:5.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--model", type=Path, help="a model of its own in place of --size")
    parser.add_argument("--clients", type=int, default=max(8, 4 * _CORES))
    parser.add_argument("--processes", type=int, help="that read images; 0: threads do")
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        folder = options.model or random_model(Path(room), options.size)
        network = network_rate(options.clients, options.seconds / 4)
        host, uses = host_rate(folder, options.seconds / 2)
        device, uses["encoder"] = device_rate(folder, options.device, options.seconds / 4)
        serving(folder, {"network": network, "host": host, "device": device}, uses, options)


if __name__ == "__main__":
    main()
