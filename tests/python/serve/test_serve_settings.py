"""`packhorse serve`: settings of flags, environment and file, and the process itself."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from command_line import Cli, failed
from packhorse.serve import ModelSettings, Settings
from packhorse.serve.openapi import document
from packhorse.serve.settings import settings_of
from serve_room import PACKAGES, SECONDS, serving, settings_for

for package in (*PACKAGES, "typer"):
    pytest.importorskip(package)

FILE = """
port = 1234
device = ["cuda:0", "cuda:1"]
api_key = "from the file"
max_wait_s = 3

[[models]]
name = "small"
path = "some/folder"
dtype = "int8"

[[models]]
path = "org/large"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(FILE)
    return path


def test_flag_before_environment_before_file_before_default(file: Path) -> None:
    environment = {"PACKHORSE_PORT": "2345", "PACKHORSE_API_KEY": "a,b", "PACKHORSE_ADMIN": "true"}
    found = Settings.load((), file, environment, port=3456)
    assert (found.port, found.api_key, found.admin, found.max_wait_s) == (3456, ("a,b",), True, 3)
    assert (found.host, found.device) == ("127.0.0.1", ("cuda:0", "cuda:1"))
    assert Settings.load((), file, environment).port == 2345
    assert Settings.load((), file, {}).port == 1234
    named = {**environment, "PACKHORSE_CONFIG": os.fspath(file)}
    assert Settings.load(environment=named).max_wait_s == 3


def test_models(file: Path, tmp_path: Path) -> None:
    found = Settings.load((), file, {})
    small, large = found.models
    assert (small.name, small.path, small.options) == ("small", "some/folder", {"dtype": "int8"})
    assert (large.name, large.path, large.options) == ("org/large", "org/large", {})
    assert found.of_model(large).device == ("cuda:0", "cuda:1")
    folder = tmp_path / "mine"
    folder.mkdir()
    (other,) = Settings.load([os.fspath(folder)], file, {}).models
    assert (other.name, other.path) == ("mine", os.fspath(folder))
    assert ModelSettings.read("text-embedding-3-small=org/x").name == "text-embedding-3-small"
    listed = Settings.load(environment={"PACKHORSE_MODELS": "a=b,c=d"}).models
    assert [one.name for one in listed] == ["a", "c"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prot": 3}, "no setting 'prot'"),
        ({"port": "many"}, "port is 'many', expected int"),
        ({"port": 70000}, "expected 0 to 65535"),
        ({"admin": "perhaps"}, "admin is 'perhaps', expected bool"),
        ({"max_wait_s": 0}, "max_wait_s is 0.0, expected a positive number"),
        ({"ssl_certfile": "x"}, "go together"),
        ({"log_level": "loud"}, "log_level is 'loud', expected debug or info"),
    ],
)
def test_refusals(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Settings.load(environment={}, **given)


def test_refusals_name_the_file(file: Path) -> None:
    file.write_text("port = [")
    with pytest.raises(ValueError, match=r"serve\.toml: "):
        Settings.load((), file, {})
    file.write_text("[[models]]\nname = 'x'\n")
    with pytest.raises(ValueError, match="has no path"):
        Settings.load((), file, {})
    with pytest.raises(ValueError, match="2 are named 'a'"):
        Settings.load(["a=x", "a=y"], None, {})
    with pytest.raises(FileNotFoundError):
        Settings.load((), file.parent / "nothing.toml", {})


def test_help_has_every_setting(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = cli("serve", "--help").out
    for name in settings_of(Settings):
        if name != "models":
            assert f"--{name.replace('_', '-')}" in shown
            assert f"PACKHORSE_{name.upper()}" in shown


def test_the_command_says_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    assert failed(cli("serve"), "no model to serve")
    ended = cli("serve", tmp_path / "nothing", "--port", 0, "--log-level", "warning")
    assert failed(ended, "nothing")


def test_a_process_that_a_signal_ends(minilm: Path) -> None:
    """From start to SIGTERM: one line of JSON for each thing that happens, and status 0."""
    command = [sys.executable, "-m", "packhorse.cli", "serve", f"m={minilm}"]
    environment = {**os.environ, "PACKHORSE_PORT": "0", "PACKHORSE_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            lines = [json.loads(process.stderr.readline()) for _ in range(3)]
            assert [line["message"] for line in lines] == ["loading", "loaded", "serving"]
            first = lines[-1]
            assert first["models"] == ["m"]
            address = first["address"].removeprefix("http://")
            connection = http.client.HTTPConnection(address, timeout=SECONDS)
            headers = {"x-request-id": "abc"}
            connection.request("POST", "/embed", json.dumps({"inputs": "a cat"}), headers)
            assert len(json.loads(connection.getresponse().read())[0]) == 384
            connection.close()
            line = json.loads(process.stderr.readline())
            assert (line["request_id"], line["route"], line["status"]) == ("abc", "/embed", 200)
            assert line["tokens"] == 4
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=SECONDS)
            assert json.loads(rest.splitlines()[0])["message"] == "stopping"
            assert process.returncode == 0
        finally:
            process.kill()


# The main thread gets a signal while it writes a line of the log, which takes no second line then.
AMID_A_LINE = """
import io, signal, sys
from packhorse.cli import main

class Stream(io.StringIO):
    busy = False

    def write(self, text):
        if self.busy:
            raise RuntimeError("reentrant call")
        self.busy = True
        if "serving" in text:
            signal.raise_signal(signal.SIGTERM)
        self.busy = False
        return sys.__stdout__.write(text)

sys.stderr = Stream()
sys.argv = ["packhorse", "serve", sys.argv[1]]
main()
"""


def test_a_signal_amid_a_line_of_the_log(minilm: Path) -> None:
    environment = {**os.environ, "PACKHORSE_PORT": "0", "PACKHORSE_THREADS": "1"}
    command = [sys.executable, "-c", AMID_A_LINE, f"m={minilm}"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line["message"] for line in lines] == ["loading", "loaded", "serving", "stopping"]
    assert lines[3]["signal"] == "SIGTERM"


def test_the_description_has_every_route() -> None:
    from packhorse.serve.app import LINES

    served = {(line.method.lower(), line.path.rstrip("/") or "/") for line in LINES}
    described = {
        (method, path.removesuffix("/reload").removesuffix("/{name}") or "/")
        for path, methods in document()["paths"].items()
        for method in methods
    }
    assert served == described


def test_traces(minilm: Path) -> None:
    """A request's span, and those of its parts, come to who collects them."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    came: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.append(gzip.decompress(body) if "content-encoding" in self.headers else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        with serving(settings_for(f"minilm={minilm}", otlp_endpoint=endpoint)) as (client, _):
            trace = "0af7651916cd43dd8448eb211c80319c"
            parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
            assert client.post("/embed", {"inputs": "a cat"}, headers=parent).status == 200
        collector.shutdown()
    (found,) = came
    spans = ExportTraceServiceRequest.FromString(found).resource_spans[0].scope_spans[0].spans
    assert [span.name for span in spans] == ["tokenize", "queue", "run", "POST /embed"]
    assert {span.trace_id.hex() for span in spans} == {trace}
    assert spans[3].parent_span_id.hex() == "b7ad6b7169203331"
    times = [spans[3].start_time_unix_nano]
    times += [time for span in spans[:3] for time in (span.start_time_unix_nano,)]
    assert times == sorted(times)


def test_tls(minilm: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl that makes a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out"
    subprocess.run([*made.split(), certificate], check=True, capture_output=True)
    files = {"ssl_certfile": os.fspath(certificate), "ssl_keyfile": os.fspath(key)}
    with serving(settings_for(f"m={minilm}", **files)) as (client, server):
        assert server.address.startswith("https://")
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", client.port, context=context)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_errors_of_loading_reach_who_runs_it(tmp_path: Path, minilm: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nothing"),
        serving(settings_for(f"m={minilm}", f"n={tmp_path / 'nothing'}")),
    ):
        pass
    with serving(settings_for(f"m={minilm}")) as (client, _):
        taken = settings_for(f"m={minilm}", port=client.port)
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1 port {client.port}"):
            serving(taken).__enter__()


def test_images_have_threads_for_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts have up to four: one takes a small part of the time of an image."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    settings = Settings()
    assert settings.preparing_threads == 4
    assert settings.image_readers("cpu") == (20, False)
    assert settings.image_readers("cuda:0") == (20, True)
    settings = Settings(tokenization_workers=3)
    assert (settings.preparing_threads, settings.image_readers("cpu")) == (3, (3, False))
    assert settings.image_readers("cuda") == (3, True)
    for device in ("cpu", "cuda"):
        chosen = Settings(tokenization_workers=3, image_processes=5)
        assert chosen.image_readers(device) == (5, True)
        assert Settings(image_processes=0).image_readers(device) == (20, False)
    with pytest.raises(ValueError, match="image_processes is -1, expected 0 or more"):
        Settings.load(image_processes=-1)
    monkeypatch.setattr("sys.frozen", True, raising=False)
    assert Settings().image_readers("cuda") == (20, False)
