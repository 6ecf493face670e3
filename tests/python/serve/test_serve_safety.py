"""`packhorse serve`: who may use it. Keys are taken as they are, pages of other sites are refused,
and no key finds out what others have sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from adapted_model import adapted_texts
from checkpoints import GOLDEN
from command_line import Cli, failed
from packhorse.serve import Settings
from packhorse.serve.errors import ServeError
from packhorse.serve.http.sites import Sites
from packhorse.serve.observability.metrics import Metrics
from serve_room import PACKAGES, serving, settings_for
from tiny_tokenizer import with_tokenizer

for package in (*PACKAGES, "typer"):
    pytest.importorskip(package)


# --- keys


@pytest.mark.parametrize("key", ["a,b", "a b", "a=b:c", ",", "ключ"])
def test_a_key_is_taken_as_it_is(key: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f"api_key = [{json.dumps(key)}, 'other']", encoding="utf-8")
    lines = tmp_path / "keys"
    lines.write_text(f"{key}\n\nother\n", encoding="utf-8")
    assert Settings.load((), file, {}).api_key == (key, "other")
    assert Settings.load(environment={"PACKHORSE_API_KEY": key}).api_key == (key,)
    assert Settings.load(environment={}, api_key=[key, "other"]).api_key == (key, "other")
    by_file = {"PACKHORSE_API_KEY_FILE": os.fspath(lines)}
    assert Settings.load(environment=by_file).api_key == (key, "other")
    assert Settings.load(environment=by_file, api_key="more").api_key == ("more", key, "other")


def test_the_command_takes_a_key_as_it_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Settings] = []
    monkeypatch.setattr("packhorse.cli.serving._run", found.append)
    cli("serve", "m", "--api-key", "a,b", "--api-key", "c d")
    monkeypatch.setenv("PACKHORSE_API_KEY", "e f,g")
    monkeypatch.setenv("PACKHORSE_DEVICE", "cpu,cpu")
    cli("serve", "m")
    assert [one.api_key for one in found] == [("a,b", "c d"), ("e f,g",)]
    assert found[1].device == ("cpu", "cpu")


@pytest.mark.parametrize("key", ["", " ", "\t", "\n", "a\n", " a", "a\0b"])
def test_blank_keys_start_no_server(key: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    for written in (key, [key], ["right", key]):
        file.write_text(f"api_key = {json.dumps(written)}".replace("\\u0000", "\\u0001"))
        with pytest.raises(ValueError, match="^api_key "):
            Settings.load((), file, {})
        with pytest.raises(ValueError, match="^api_key "):
            Settings.load(environment={}, api_key=written)
    with pytest.raises(ValueError, match="^api_key "):
        Settings.load(environment={"PACKHORSE_API_KEY": key})


def test_blank_files_of_keys_start_no_server(cli: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text(" \n\n")
    for path, said in ((empty, "there is no key in"), ("", "api_key_file is blank")):
        with pytest.raises(ValueError, match=said):
            Settings.load(environment={"PACKHORSE_API_KEY_FILE": str(path)})
    with pytest.raises(FileNotFoundError):
        Settings.load(environment={}, api_key_file=str(tmp_path / "nothing"))
    assert failed(cli("serve", "m", "--api-key", ""), "api_key (--api-key, PACKHORSE_API_KEY)")
    with pytest.raises(ValueError, match="api_key is a int, expected texts") as refused:
        Settings.load(environment={}, api_key=12345)
    assert "12345" not in str(refused.value)


def test_blank_keys_of_settings_that_were_made_by_hand_start_none_either() -> None:
    from packhorse.serve.http.service import Service

    with pytest.raises(ValueError, match="^api_key "):
        Service(Settings(api_key=("",)))


# --- sites


def check(method: str = "POST", given: dict[str, Any] | None = None, **headers: str) -> str:
    """ "" where a request may pass, or why not."""
    settings = Settings.load(environment={}, **(given or {}))
    sites = Sites(settings, Metrics())
    sites.listen_at(settings.host)
    names = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        sites.check(method, names)
    except ServeError as error:
        return f"{error.kind}: {error.message}"
    return ""


EVERYWHERE = {"host": "0.0.0.0"}


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("localhost.", True),
        ("app.localhost:1", True),
        ("127.0.0.1:8000", True),
        ("127.9.9.9", True),
        ("[::1]:8000", True),
        ("192.168.1.2:8000", True),
        ("", True),
        ("attacker.example", False),
        ("attacker.example:8000", False),
        ("127.0.0.1.attacker.example", False),
        ("localhost.attacker.example", False),
        ("notlocalhost", False),
        ("[attacker.example]", False),
    ],
)
def test_names_that_lead_to_this_machine(host: str, right: bool) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert (check(method, host=host) == "") is right
        assert check(method, EVERYWHERE, host=host) == ""
    allowed = check(given={"allowed_host": "b.example,attacker.example"}, host=host)
    assert (allowed == "") is (right or "attacker.example" in (host, host[:-5], host[1:-1]))
    assert check(given={"allowed_host": "*"}, host=host) == ""


def test_other_names_are_refused_where_names_are_allowed() -> None:
    given = {**EVERYWHERE, "allowed_host": "API.example:443"}
    assert check(given=given, host="api.example:8000") == ""
    assert "see allowed_host" in check(given=given, host="other.example")


@pytest.mark.parametrize(
    ("headers", "right"),
    [
        ({}, True),
        ({"content_type": "application/x-www-form-urlencoded"}, True),
        ({"content_type": "text/plain"}, True),
        ({"origin": "http://localhost:8000"}, True),
        ({"origin": "https://localhost:8000"}, True),
        ({"origin": "http://LocalHost:8000"}, True),
        ({"origin": "http://proxied.example", "sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"origin": "https://attacker.example"}, False),
        ({"origin": "http://localhost:3000", "sec_fetch_site": "same-site"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "localhost:8000"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
    ],
)
def test_pages_of_other_sites(headers: dict[str, str], right: bool) -> None:
    for given in ({}, EVERYWHERE):
        assert (check("POST", given, host="localhost:8000", **headers) == "") is right
    assert check(given={"cors_allow_origin": "*"}, host="localhost:8000", **headers) == "" or (
        "origin" not in headers
    )


def test_what_is_allowed_of_other_sites() -> None:
    given = {"cors_allow_origin": "https://a.example", "allowed_host": "api.example"}
    assert check(given=given, host="localhost", origin="https://a.example") == ""
    assert check(given=given, host="localhost", origin="https://API.example:444") == ""
    assert "see cors_allow_origin" in check(
        given=given, host="localhost", origin="http://b.example"
    )
    # A link leads to a page; what a link cannot do is to send something.
    assert check("GET", host="localhost", sec_fetch_site="cross-site") == ""


def test_a_page_of_another_site_is_refused_on_all_routes(tmp_path: Path) -> None:
    from packhorse.serve.app import LINES

    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "m")
    with serving(settings_for(f"m={folder}", admin=True)) as (client, _):
        for line in LINES:
            path = f"{line.path}x" if line.path.endswith("/") and line.path != "/" else line.path
            body = None if line.method == "GET" else {"name": "n", "path": "x"}
            for headers in ({"Origin": "http://b.example"}, {"Host": "b.example"}):
                found = client.ask(line.method, path, body, headers=headers)
                assert found.status == 403, (path, headers)
        preflight = {"Origin": "http://b.example", "Access-Control-Request-Method": "POST"}
        assert client.ask("OPTIONS", "/models", headers=preflight).status == 403
        assert client.post("/predict", {"inputs": "a"}).status == 200
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/predict", {"inputs": "a"}, headers=form).status == 200
        own = {"Origin": f"http://127.0.0.1:{client.port}"}
        assert client.post("/predict", {"inputs": "a"}, headers=own).status == 200
        assert client.metric("packhorse_refused_total") == 2 * len(LINES) + 1
    with serving(settings_for(f"m={folder}", cors_allow_origin="http://b.example")) as (client, _):
        found = client.post("/predict", {"inputs": "a"}, headers={"Origin": "http://b.example"})
        assert found.headers["access-control-allow-origin"] == "http://b.example"
        other = client.post("/predict", {"inputs": "a"}, headers={"Origin": "http://c.example"})
        assert (other.status, "access-control-allow-origin" in other.headers) == (403, False)


# --- what others have sent


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("key", [0, 0, 64, 64]), ("shared", [0, 64, 64, 64]), ("off", [0, 0, 0, 0])],
)
def test_what_a_key_learns_of_other_keys(tmp_path: Path, policy: str, expected: list[int]) -> None:
    """Tokens of the prompt that were in the cache, for requests of two keys in turn."""
    model, _ = adapted_texts(tmp_path)
    request = {"prompt": [i % 50 for i in range(70)], "max_tokens": 1, "temperature": 0}
    given = {"api_key": ("one", "two"), "kv_tokens": 1024, "prefix_cache": policy}
    with serving(settings_for(f"lm={model}", **given)) as (client, _):
        found = []
        for key in ("one", "two", "two", "one"):
            headers = {"Authorization": f"Bearer {key}"}
            answer = client.post("/v1/completions", request, headers=headers)
            found.append(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found == expected


def test_without_keys_all_share(tmp_path: Path) -> None:
    model, _ = adapted_texts(tmp_path)
    request = {"prompt": [i % 50 for i in range(70)], "max_tokens": 1}
    with serving(settings_for(f"lm={model}", kv_tokens=1024)) as (client, _):
        usages = [client.post("/v1/completions", request).json["usage"] for _ in range(2)]
    assert [one["prompt_tokens_details"]["cached_tokens"] for one in usages] == [0, 64]
