"""The clients of docs/serve.md, as the page writes them, against a server with small models."""

from __future__ import annotations

import ast
import gc
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_room import PACKAGES, Client, make_models, serve_chance, serving, settings_for
from snippets import ROOT, Snippet, find_snippets, parse

for package in PACKAGES:
    pytest.importorskip(package)

ADDRESS = "localhost:8000"  # as the page writes it
OTHERS = {"ranker": "reranker", "tagger": "tagger"}
PAGE = "docs/serve.md"
CLIENTS = (ROOT / PAGE).read_text(encoding="utf-8").partition("\n## The page\n")[0]
SNIPPETS = [
    one
    for one in find_snippets(CLIENTS, PAGE)
    if ADDRESS in one.text and (one.language == "python" or one.text.startswith("curl"))
]


@pytest.fixture(scope="module")
def client(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        serve_chance(monkeypatch)
        folders = make_models(tmp_path_factory.mktemp("models"))
        named = [f"text-embedding-3-small={minilm}", "chat=chance"]
        named += [f"{name}={folders[golden]}" for name, golden in OTHERS.items()]
        with serving(settings_for(*named, max_new_tokens=8)) as (found, _):
            yield found


def packages(snippet: Snippet) -> list[str]:
    """Lists the packages that a snippet imports."""
    imported = []
    for node in ast.walk(parse(snippet)):
        if isinstance(node, ast.ImportFrom):
            imported.append(str(node.module))
        elif isinstance(node, ast.Import):
            imported += [one.name for one in node.names]
    return imported


def test_all_clients_are_there() -> None:
    languages = [one.language for one in SNIPPETS]
    assert languages.count("sh") >= 2
    imported = {name for one in SNIPPETS if one.language == "python" for name in packages(one)}
    assert imported == {"openai", "cohere", "huggingface_hub"}


@pytest.mark.filterwarnings("default")  # those of the clients
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_client(snippet: Snippet, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    text = snippet.text.replace(ADDRESS, f"127.0.0.1:{client.port}")
    if snippet.language == "sh":
        if shutil.which("curl") is None:
            pytest.skip("there is no curl")
        text = text.replace("curl ", "curl --silent --show-error --fail --max-time 60 ")
        done = subprocess.run(["sh", "-ec", text], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout[:1] in (b"[", b"{", b"d"), done.stdout  # JSON, or "data: "
        return
    for name in packages(snippet):
        pytest.importorskip(name)
    # Clients that conftest.py keeps from the hub may still ask this machine.
    if "huggingface_hub" in packages(snippet):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    exec(compile(text, snippet.name, "exec"), {"__name__": "snippet"})
    gc.collect()  # Clients that the page never closes warn of their sockets here, not elsewhere.
