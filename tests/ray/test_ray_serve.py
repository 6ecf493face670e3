"""The server on Ray Serve: its routes, its replicas, and how many of them there are."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import packhorse
import packhorse.ray
import pytest
from packhorse.ray.autoscaling import QueuedTokens
from ray import serve
from ray_support import Cluster, kill, make_texts, wait_for, workers

pytest.importorskip("orjson", reason="needs the extra serve")

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(cluster: Cluster) -> Iterator[Ask]:
    """ask(path, body) sends a request to the proxy of the cluster and gives its JSON."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    def send(path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                data = response.read()
        except urllib.error.HTTPError as error:
            with error:
                error.msg += f": {error.read().decode()}"
            raise
        return json.loads(data) if data else None

    yield send
    serve.shutdown()


def replicas() -> int:
    """Number of replicas that run now."""
    (deployment,) = serve.status().applications["default"].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def deploy(ask: Ask, application: serve.Application) -> None:
    """Runs an application until the proxy knows it, which may be later than `serve.run` returns."""
    serve.run(application)

    def routes() -> Any:
        try:
            return ask("/-/routes")
        except urllib.error.HTTPError:  # the proxy has no replica
            return None

    wait_for(routes)


def test_the_routes_of_the_server(ask: Ask, model: Path) -> None:
    deploy(ask, packhorse.ray.deployment(f"tiny={model}", num_cpus=0.5).bind())
    texts = [text or "the" for text in make_texts(40)]
    with packhorse.TextModel.load(model, threads=1) as plain:
        expected = plain.embed(texts)
    found = np.array(ask("/embed", {"inputs": texts[:32]}), np.float32)
    assert found.tobytes() == expected[:32].tobytes()
    answer = ask("/v1/embeddings", {"input": texts[32:], "model": "tiny"})
    found = np.array([row["embedding"] for row in answer["data"]], np.float32)
    assert found.tobytes() == expected[32:].tobytes()
    assert [one["id"] for one in ask("/v1/models")["data"]] == ["tiny"]
    ask("/health")
    with pytest.raises(
        urllib.error.HTTPError, match="404: .*there is no model 'another', but: tiny"
    ):
        ask("/v1/embeddings", {"input": texts, "model": "another"})


def test_a_replica_that_is_killed_is_replaced(ask: Ask, model: Path) -> None:
    deploy(ask, packhorse.ray.deployment(model, num_cpus=0.5).bind())
    ask("/embed", {"inputs": "the cat"})
    (old,) = workers("ServeReplica")
    kill(old)
    wait_for(lambda: set(workers("ServeReplica")) - {old})

    def answers() -> Any:
        try:
            return ask("/embed", {"inputs": "the cat"})
        except urllib.error.URLError:
            return None

    assert len(wait_for(answers)) == 1


def test_waiting_tokens_bring_replicas(ask: Ask, model: Path) -> None:
    target = packhorse.ray.deployment(
        model,
        num_cpus=0.4,
        max_replicas=2,
        target_queued_tokens=1,
        autoscaling={"upscale_delay_s": 0.5, "downscale_delay_s": 1.0},
        max_batch_tokens=512,
        max_client_batch_size=1000,
        max_queue_tokens=1 << 30,
        max_wait_s=1e6,
    )
    deploy(ask, target.bind())
    assert replicas() == 1
    over = threading.Event()
    texts = [text or "the" for text in make_texts(1000)]

    def load() -> None:
        while not over.is_set():
            ask("/embed", {"inputs": texts})

    with ThreadPoolExecutor(4) as executor:
        calls = [executor.submit(load) for _ in range(4)]
        try:
            wait_for(lambda: replicas() == 2 or any(call.done() for call in calls))
        finally:
            over.set()
            for call in calls:
                call.result()
    wait_for(lambda: replicas() == 1)


@pytest.mark.parametrize(
    ("reports", "requests", "replicas"),
    [
        (None, 0, 0),
        ({}, 3, 1),
        ({"queued_tokens": {"a": 0.0, "b": 0.0}}, 0, 0),
        ({"queued_tokens": {"a": 100.0}}, 1, 1),
        ({"queued_tokens": {"a": 100.0, "b": 1.0}}, 1, 2),
        ({"queued_tokens": {"a": 950.0, "b": 0.0}}, 1, 10),
        ({"queued_tokens": {"a": 1.0}}, 41, 5),
    ],
)
def test_the_policy(reports: Any, requests: int, replicas: int) -> None:
    policy = QueuedTokens(target_queued_tokens=100, target_ongoing_requests=10)
    context = SimpleNamespace(aggregated_metrics=reports, total_num_requests=requests)
    assert policy(context) == (replicas, {})


def test_refusals(model: Path) -> None:
    for options, message in (
        ({"target_queued_tokens": 0}, "target_queued_tokens is 0, expected at least 1"),
        ({"dtpye": "float32"}, "there is no setting 'dtpye'"),
        ({"max_queue_tokens": 0}, "max_queue_tokens is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            packhorse.ray.deployment(model, **options)
    deployment = packhorse.ray.deployment(model, num_gpus=0.5, max_replicas=8)
    assert deployment.ray_actor_options["num_gpus"] == 0.5
