"""`packhorse serve`: images that lie, are too large or none, and URLs that lead where they must
not."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from packhorse.serve.errors import ServeError
from packhorse.serve.http.image_urls import ImageUrls
from packhorse.serve.models import image_inputs
from packhorse.serve.observability.metrics import Metrics
from picture_models import data_url, picture, picture_model
from serve_room import PACKAGES, Client, serving, settings_for

for package in (*PACKAGES, "PIL"):
    pytest.importorskip(package)

GOOD = picture(0)
LIMITS: dict[str, Any] = {
    "max_client_images": 4,
    "max_image_bytes": 20_000,
    "max_image_pixels": 10_000,
    "payload_limit": 200_000,
    "image_url_timeout_s": 1.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_model("clip", tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture(scope="module", params=[0, 2], ids=["threads", "processes"])
def client(folder: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    settings = settings_for(f"clip={folder}", **LIMITS, image_processes=request.param)
    with serving(settings) as (found, _):
        yield found


def ask(client: Client, *images: Any) -> Any:
    return client.post("/v1/embeddings", {"input": [{"image": one} for one in images]})


def refused(client: Client, status: int, message: str, *images: Any) -> None:
    """By each protocol, and the server goes on."""
    answer = ask(client, *images)
    assert answer.status == status, answer.body
    assert message in answer.json["error"]["message"]
    parameters = {"candidate_labels": ["cat"]}
    body = {"inputs": list(images), "parameters": parameters}
    of_hub = client.post("/zero-shot-image-classification", body)
    assert (of_hub.status, message in of_hub.json["error"]) == (413 if status == 413 else 422, True)
    of_cohere = client.post("/v2/embed", {"images": list(images)})
    assert (of_cohere.status, message in of_cohere.json["message"]) == (status, True)
    assert ask(client, data_url(GOOD)).status == 200


def png(width: int, height: int) -> bytes:
    """A picture of so many white pixels, a bit each."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    rows = [packer.compress(b"\0" + b"\xff" * ((width + 7) // 8)) for _ in range(min(height, 300))]
    content = b"".join([*rows, packer.flush()])
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", content), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_bombs(client: Client) -> None:
    """Few bytes that are many pixels: refused by the header."""
    for width, height in ((101, 100), (30_000, 3000), (60_000, 60_000)):
        refused(client, 413, "pixels", data_url(png(width, height)))
    refused(client, 413, "pixels", data_url(GOOD), data_url(png(9999, 9)))
    assert ask(client, data_url(png(100, 100))).status == 200


def test_narrow_images(tmp_path: Path) -> None:
    """Few pixels that would become very many where the shorter side is made longer."""
    folder = picture_model("dinov2-classes", tmp_path / "dino")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings |= {"size": {"shortest_edge": 28}, "do_center_crop": False}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    with serving(settings_for(f"dino={folder}", **LIMITS, max_batch_tokens=100)) as (client, _):
        answer = ask(client, data_url(png(1000, 2)))
        assert answer.status == 400
        assert "becomes 8000 patches, the model takes 100" in answer.json["error"]["message"]
        assert ask(client, data_url(GOOD)).status == 200


def test_many_scans(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (90, 90)).save(file, "JPEG", progressive=True)
    assert ask(client, data_url(file.getvalue(), "image/jpeg")).status == 200
    monkeypatch.setattr(image_inputs, "MOST_SCANNED", 90 * 90 * 9)
    refused(client, 400, "scans, which takes too long", data_url(file.getvalue(), "image/jpeg"))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_broken_files(client: Client, form: str) -> None:
    file = picture(3, form)
    for content in (file[: len(file) // 2], file[:20]):
        refused(client, 400, "image", data_url(content))
    flipped = bytearray(file)
    flipped[3:9] = b"\xff" * 6
    refused(client, 400, "no JPEG, PNG or WebP image", data_url(bytes(flipped)))


def test_what_is_no_image(client: Client) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    gif = b"GIF89a" + bytes(40)
    cases = [
        ("is of type 'image/svg+xml'", data_url(svg, "image/svg+xml")),
        ("no JPEG, PNG or WebP image", data_url(svg)),
        ("is of type 'image/gif'", data_url(gif, "image/gif")),
        ("no JPEG, PNG or WebP image", data_url(gif)),
        ("is of type 'text/html'", data_url(GOOD, "text/html")),
        ("is not a data URL in base64", f"data:image/png,{GOOD[:9]!r}"),
        ("is not a data URL in base64", "data:image/png;base64"),
        ("is not a data URL in base64", f"data:{'x' * 300},"),
        ("is not base64", "data:image/png;base64,$$$$"),
        ("is not base64", "file:///etc/passwd"),
        ("no JPEG, PNG or WebP image", "data:image/png;base64,"),
        ("no JPEG, PNG or WebP image", ""),
        ("URLs are not fetched", "http://localhost/a.png"),
        ("URLs are not fetched", "HTTPS://example.com/a.png"),
    ]
    for message, image in cases:
        refused(client, 400, message, image)
    for raw, status in ((svg, 422), (b"", 422), (GOOD * 20, 413)):
        headers = {"content-type": "image/png"}
        assert client.post("/image-classification", raw, headers=headers).status in (status, 424)


def test_too_much(client: Client) -> None:
    good = data_url(GOOD)
    refused(client, 413, "at most 4 are taken", *[good] * 5)
    refused(client, 413, "at most 20000 are taken for an image", data_url(b"\0" * 20_001))
    answer = ask(client, "A" * 300_000)
    assert answer.status == 413
    assert "the body has" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"image": 1},
        {"image": None},
        {"text": "a", "image": "b"},
        {"type": "text", "image_url": "b"},
        {"type": "image_url", "text": "a"},
        {"type": "audio", "image": "a"},
        {"image_url": {}},
        {"image_url": {"url": "a", "more": 1}},
        {"image": "a", "more": 1},
        {"content": []},
        {"content": [{"text": "a"}, {"text": "b"}]},
        {"content": [1]},
        {"content": 1},
        {"role": "system", "content": "a"},
        {"content": [{"content": "a", "more": 1}]},
        17,
        None,
        ["a"],
    ],
)
def test_other_forms(client: Client, item: Any) -> None:
    answer = client.post("/v1/embeddings", {"input": [{"image": data_url(GOOD)}, item]})
    assert answer.status == 400
    assert answer.json["error"]["type"] == "invalid_request_error"


def test_deep_content(client: Client) -> None:
    item: Any = {"text": "a"}
    for _ in range(400):
        item = {"content": [item]}
    assert client.post("/v1/embeddings", {"input": [item]}).status == 400
    assert ask(client, data_url(GOOD)).status == 200


def test_images_are_read_beside_the_event_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests are answered while a picture is being decoded."""
    threads, begun, go_on = [], threading.Event(), threading.Event()
    real = image_inputs.ImageInput.header

    def slow(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(30)
        return real(*arguments)

    monkeypatch.setattr(image_inputs.ImageInput, "header", slow)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(ask(client, data_url(GOOD)).status))
    asking.start()
    assert begun.wait(30)
    assert client.get("/health").status == 200
    assert client.post("/v1/embeddings", {"input": "the cat"}).status == 200
    go_on.set()
    asking.join()
    assert found == [200]
    assert all(name.startswith("packhorse-image-") for name in threads)


@pytest.mark.parametrize("total", [None, 250])
def test_budget_of_pixels(total: int | None) -> None:
    """Threads decode as many pixels at a time as they may, and no more."""
    budget = image_inputs.PixelBudget(100, total)
    held, most, lock = [0], [0], threading.Lock()

    def decode(pixels: int) -> None:
        with budget.room(pixels):
            with lock:
                held[0] += pixels
                most[0] = max(most[0], held[0])
            time.sleep(0.001)
            with lock:
                held[0] -= pixels

    sizes = np.random.default_rng(0).integers(1, 101, 40)
    threads = [threading.Thread(target=decode, args=(int(size),)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= (total or 100)
    assert total is None or most[0] > 100
    with budget.room(100):
        pass


# --- URLs


class Pictures(BaseHTTPRequestHandler):
    """A host of pictures that misbehaves as the path says."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        port = self.server.server_port  # type: ignore[attr-defined]
        name, _, rest = self.path[1:].partition("/")
        if name == "good":
            assert self.headers["Host"] == f"localhost:{port}"
            assert "Authorization" not in self.headers
            self._send(200, GOOD, Content_Type="image/png")
        elif name == "plain":
            self._send(200, GOOD, Content_Type="application/octet-stream")
        elif name == "again":
            self._send(302, Location="/good")
        elif name == "round":
            self._send(301, Location="/round")
        elif name == "to":
            self._send(307, Location=f"http://{rest}")
        elif name == "nowhere":
            self._send(302)
        elif name == "html":
            self._send(200, GOOD, Content_Type="text/html")
        elif name == "packed":
            self._send(200, GOOD, Content_Type="image/png", Content_Encoding="gzip")
        elif name == "large":
            self._send(200, b"\0" * 20_001, Content_Type="image/png")
        elif name == "endless":
            self._send(200, Content_Length="1000000000", Content_Type="image/png")
            self.wfile.write(b"\0" * 100_000)
        elif name == "short":
            self._send(200, Content_Length="1000", Content_Type="image/png")
        elif name == "slow":
            self._send(200, Content_Length="10000", Content_Type="image/png")
            for _ in range(40):  # a byte now and then: no read of the client takes long
                self.wfile.write(b"\0")
                time.sleep(0.1)
        else:
            self._send(404)


@contextmanager
def pictures() -> Iterator[int]:
    """Port of the host."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pictures() as found:
        yield found


def urls(*hosts: str) -> ImageUrls:
    return ImageUrls(settings_for(allow_image_urls=hosts, **LIMITS), Metrics())


def test_images_of_a_host(folder: Path, port: int) -> None:
    settings = settings_for(
        f"clip={folder}", allow_image_urls=(f"localhost:{port}", "127.0.0.1"), **LIMITS
    )
    base = f"http://localhost:{port}"
    with serving(settings) as (client, _):
        expected = ask(client, data_url(GOOD)).json["data"]
        for path in ("good", "again"):
            assert ask(client, f"{base}/{path}").json["data"] == expected
        assert ask(client, f"{base}/plain").status == 200
        body = {"inputs": f"{base}/good", "parameters": {"candidate_labels": ["cat", "mat"]}}
        assert len(client.post("/zero-shot-image-classification", body).json) == 2
        Pictures.asked.clear()
        answer = ask(client, f"{base}/good", "http://elsewhere.example/a.png")
        assert answer.status == 400
        assert "'elsewhere.example' is no host of allow_image_urls" in str(answer.json)
        assert Pictures.asked == []  # nothing is asked if one may not be
        assert client.metric("packhorse_refused_total") >= 1
        assert ask(client, f"{base}/large").status == 400
        assert ask(client, data_url(GOOD)).status == 200


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none", "the host answered 404"),
        ("round", "more than 3 redirects"),
        ("nowhere", "a redirect without a target"),
        ("html", "is of type 'text/html', expected an image"),
        ("packed", "the host compresses it"),
        ("large", "more than 20000 bytes"),
        ("endless", "more than 20000 bytes"),
        ("short", "it ends before its time|no answer"),
        ("slow", "no answer in 1 s|ends before its time"),
    ],
)
def test_hosts_that_misbehave(port: int, path: str, message: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ServeError, match=message):
        urls(f"localhost:{port}", "127.0.0.1").fetch("input", f"http://localhost:{port}/{path}")
    assert time.monotonic() - begin < 3


def test_redirects_to_other_hosts(port: int) -> None:
    """Even where both are named, and to the same machine under another name."""
    allowed = urls(f"localhost:{port}", f"127.0.0.1:{port}", "127.0.0.1")
    targets = [f"127.0.0.1:{port}/good", "169.254.169.254/latest/meta-data", "localhost:1/good"]
    for target in targets:
        with pytest.raises(ServeError, match=r"leads to another host|is no host of"):
            allowed.fetch("input", f"http://localhost:{port}/to/{target}")


def test_private_addresses(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was allowed, but has an address that was not."""
    Pictures.asked.clear()
    with pytest.raises(ServeError, match="an address that is not public"):
        urls(f"localhost:{port}").fetch("input", f"http://localhost:{port}/good")
    asked: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda *given, **_: asked.append(given))
    addresses = ["10.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1%1", "::ffff:10.0.0.1"]
    addresses += ["64:ff9b::a00:1", "2002:a00:1::", "224.0.0.1", "100.64.0.1", "fd00::1"]
    for address in addresses:
        found = [(0, 0, 0, "", ("93.184.215.14", 80)), (0, 0, 0, "", (address, 80))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, found=found, **_k: found)
        with pytest.raises(ServeError, match="an address that is not public"):
            urls("pictures.example").fetch("input", "http://pictures.example/a.png")
    assert asked == []
    assert Pictures.asked == []


def test_the_checked_address_is_asked(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked up once: what it means a moment later has no effect."""
    looked_up: list[str] = []

    def look_up(name: str, *_: Any, **__: Any) -> Any:
        looked_up.append(name)
        return real(f"127.0.0.{len(looked_up)}", *_, **__)

    real = socket.getaddrinfo
    allowed = urls(f"localhost:{port}", "127.0.0.1")
    connect = socket.create_connection
    connected: list[Any] = []

    def note(address: Any, *given: Any, **options: Any) -> Any:
        connected.append(address)
        monkeypatch.setattr(socket, "getaddrinfo", real)
        return connect(address, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", note)
    assert allowed.fetch("input", f"http://localhost:{port}/good") == GOOD
    assert looked_up == ["localhost"]
    assert connected == [("127.0.0.1", port)]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://elsewhere.example/a", "is no host of allow_image_urls"),
        ("http://pictures.example:81/a", "is no host of"),
        ("http://pictures.example.evil.example/a", "is no host of"),
        ("http://evilpictures.example/a", "is no host of"),
        ("http://below.example/a", "is no host of"),
        ("http://user@pictures.example/a", "with a user or a password"),
        ("http://pictures.example@evil.example/a", "with a user or a password"),
        ("http://pictures.example\\@evil.example/", "is no host of|with a user"),
        ("http://pictures.example/a b", "is no URL"),
        ("http://pictures.example/a\r\nHost: x", "is no URL"),
        ("http://pict\u00fcres.example/", "is no URL"),
        ("http://pictures.example/" + "a" * 3000, "is no URL"),
        ("http://[::1/a", "is no URL"),
        ("http:///a", "not a URL of http"),
        ("https://10.1.0.1:444/", "is no host of"),
        ("http://11.0.0.1/", "is no host of"),
        ("http://0x0a000001/", "is no host of"),
    ],
)
def test_urls_that_are_not_asked(url: str, message: str) -> None:
    with pytest.raises(ServeError, match=message) as caught:
        urls("pictures.example", "*.below.example", "10.0.0.0/8").check("input", url)
    assert caught.value.parameter == "input"


def test_named_hosts() -> None:
    hosts = ("Pictures.example", "*.below.example", "10.0.0.0/8,other.example:8080", "[::1]:80")
    allowed = urls(*hosts)
    for url in (
        "http://pictures.example/a?b=c",
        "https://PICTURES.example/",
        "http://a.b.below.example/",
        "http://10.1.2.3/a",
        "https://10.1.2.3:443/a",
        "http://other.example:8080/",
        "http://[::1]/",
    ):
        allowed.check("input", url)
    for wrong in ("*", "*.", "http://a.example", "a/b", "a.example:x", "user@a", ":80"):
        with pytest.raises(ValueError, match="is no host, expected NAME"):
            urls(wrong)


def test_base64_of_bytes() -> None:
    """Sizes are those of the file, with any padding."""
    for size in range(7):
        image = image_inputs.ImageInput("x", base64.b64encode(b"a" * size).decode())
        assert image.file(size) == b"a" * size
        if size:
            with pytest.raises(ServeError, match="bytes, at most"):
                image.file(size - 1)
