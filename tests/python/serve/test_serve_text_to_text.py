"""`packhorse serve`: translations, summaries and completions of models with an encoder, beside what
`TextModel` gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import GOLDEN
from packhorse import TextModel
from serve_room import PACKAGES, Client, serving, settings_for
from text_to_text_models import make_folder

for package in PACKAGES:
    pytest.importorskip(package)

TEXTS = ["the cat sat on the mat", "Hello world. It's 9, or 10! " * 8, " "]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "marian": make_folder(root / "marian", "marian", num_beams=2),
        "mbart": make_folder(root / "mbart", "mbart"),
    }


@pytest.fixture(scope="module")
def client(paths: dict[str, Path], minilm: Path) -> Iterator[Client]:
    named = [f"{name}={path}" for name, path in paths.items()]
    settings = settings_for(*named, f"minilm={minilm}", kv_tokens=4096, max_client_batch_size=8)
    with serving(settings) as (found, _):
        yield found


@pytest.fixture(scope="module")
def models(paths: dict[str, Path]) -> Iterator[dict[str, TextModel]]:
    loaded = {name: TextModel.load(path, kv_tokens=4096) for name, path in paths.items()}
    yield loaded
    for one in loaded.values():
        one.close()


def test_a_source_has_no_log_probabilities(client: Client) -> None:
    body = {"model": "mbart", "prompt": TEXTS[0], "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = client.post("/v1/completions", body)
    assert answer.status == 400
    assert "reads the prompt in its encoder" in answer.json["error"]["message"]
    assert client.post("/v1/completions", {**body, "echo": False, "max_tokens": 3}).status == 200


def test_translations(client: Client, models: dict[str, TextModel]) -> None:
    answer = client.post("/translate", {"inputs": TEXTS})
    assert answer.status == 200, answer.json
    expected = models["marian"].translate(TEXTS)
    assert [one["translation_text"] for one in answer.json] == expected
    answer = client.post("/translate", {"inputs": TEXTS[0]})
    assert answer.json == [{"translation_text": expected[0]}]
    parameters = {"src_lang": "de", "tgt_lang": "fr", "generate_parameters": {"num_beams": 3}}
    answer = client.post(
        "/translate", {"model": "mbart", "inputs": TEXTS, "parameters": parameters}
    )
    expected = models["mbart"].translate(TEXTS, source="de", target="fr", num_beams=3)
    assert [one["translation_text"] for one in answer.json] == expected


def test_a_translation_by_an_adapter(tmp_path: Path) -> None:
    """An adapter has a model name of its own, on every route of models that translate."""
    folder = make_folder(tmp_path / "m2m", "m2m-100")
    adapter = GOLDEN / "text_to_text_adapters" / "m2m-100"
    with TextModel.load(folder, kv_tokens=4096, max_adapters=1) as model:
        model.generation_session.add_adapter("mine", adapter)
        languages = {"source": "de", "target": "fr"}
        expected = [model.translate(TEXTS, **languages, adapter=name) for name in (None, "mine")]
    assert expected[0] != expected[1]
    settings = settings_for(f"m2m={folder}", adapter=(f"mine={adapter}",), kv_tokens=4096)
    with serving(settings) as (client, _):
        for name, texts in zip(("m2m", "mine"), expected, strict=True):
            body = {"model": name, "inputs": TEXTS}
            body["parameters"] = {"src_lang": "de", "tgt_lang": "fr"}
            answer = client.post("/translate", body)
            assert answer.status == 200, answer.json
            assert [one["translation_text"] for one in answer.json] == texts


def test_the_client_of_hugging_face(
    client: Client, models: dict[str, TextModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    address = f"http://127.0.0.1:{client.port}"
    text = TEXTS[0]
    beams = {"num_beams": 3}
    found = hub.InferenceClient(f"{address}/translate").translation(text, generate_parameters=beams)
    assert found.translation_text == models["marian"].translate(text, num_beams=3)
    found = hub.InferenceClient(f"{address}/summarize").summarization(text)
    assert found.summary_text == models["marian"].summarize(text)


def test_several_translations(client: Client, models: dict[str, TextModel]) -> None:
    beams = {"num_beams": 3, "num_return_sequences": 2}
    parameters = {"generate_parameters": beams}
    made = models["marian"].translate(TEXTS, num_beams=3, n=2, details=True)
    answer = client.post("/translate", {"inputs": TEXTS, "parameters": parameters})
    assert answer.status == 200, answer.json
    expected = [[(one.text, one.score) for one in each] for each in made]
    assert len(set(expected[0])) == 2
    found = [
        [(one["translation_text"], one.get("score", 0)) for one in each] for each in answer.json
    ]
    assert found == expected
    alone = client.post("/translate", {"inputs": TEXTS[0], "parameters": parameters})
    assert alone.json == answer.json[0]
    beams["num_return_sequences"] = 4
    refused = client.post("/translate", {"inputs": TEXTS[0], "parameters": parameters})
    assert refused.status == 422
    assert "num_return_sequences is 4, expected at most num_beams" in refused.json["error"]


def test_models_say_their_methods_and_languages(
    client: Client, models: dict[str, TextModel]
) -> None:
    about = {one["name"]: one for one in client.get("/models").json}
    for name in ("marian", "mbart"):
        assert about[name]["methods"] == ["generate", "summarize", "translate"]
    assert "languages" not in about["minilm"]
    one_way = {
        "source": {"codes": ["en"], "default": "en", "required": False},
        "target": {"codes": ["de"], "default": "de", "required": False},
    }
    assert about["marian"]["languages"] == one_way
    sides = about["mbart"]["languages"]
    assert sides["source"]["default"] == "en_XX"
    assert (sides["target"]["default"], sides["target"]["required"]) == (None, True)
    # Each code that is named is one that a call may name, and there are no others.
    codes = sides["target"]["codes"]
    assert codes == sides["source"]["codes"] == sorted(codes)
    for code in codes:
        models["mbart"].translate("a", source=code, target=code, max_new_tokens=1)
    with pytest.raises(ValueError, match=f"has {len(codes)} languages"):
        models["mbart"].translate("a", target="no such")


def test_summaries(client: Client, models: dict[str, TextModel]) -> None:
    body = {"inputs": TEXTS, "parameters": {"split": "sentences"}}
    answer = client.post("/summarize", body)
    expected = models["marian"].summarize(TEXTS, split="sentences")
    assert [one["summary_text"] for one in answer.json] == expected


def test_completions(client: Client, models: dict[str, TextModel]) -> None:
    body = {"prompt": TEXTS[:1], "max_tokens": 12}
    answer = client.post("/v1/completions", body)
    assert answer.status == 200, answer.json
    made = models["marian"].generate(TEXTS[0], details=True)
    assert answer.json["choices"][0]["text"] == made.text
    assert answer.json["usage"]["prompt_tokens"] == made.usage.prompt_tokens
    sampled = client.post("/v1/completions", {**body, "temperature": 1, "seed": 3})
    expected = models["marian"].generate(
        TEXTS[0], temperature=1, seed=3, num_beams=1, max_new_tokens=12
    )
    assert sampled.json["choices"][0]["text"] == expected


def test_generate(client: Client, models: dict[str, TextModel]) -> None:
    """The fields of text-generation-inference, beside what TextModel gives for them."""
    model = models["marian"]
    made = model.generate(TEXTS[0], details=True, logprobs=0, max_new_tokens=100)
    parameters = {"details": True, "stop": []}
    answer = client.post("/generate", {"inputs": TEXTS[0], "parameters": parameters})
    assert answer.status == 200, answer.json
    assert answer.json["generated_text"] == made.text
    details = answer.json["details"]
    assert [one["id"] for one in details["tokens"]] == list(made.ids)
    assert [one["logprob"] for one in details["tokens"]] == pytest.approx(made.logprobs)
    specials = {model.tokenizer.id_of(name) for name in ("</s>", "<pad>")}
    assert [one["special"] for one in details["tokens"]] == [i in specials for i in made.ids]
    assert details["generated_tokens"] == len(made.ids)
    assert details["finish_reason"] == ("eos_token" if made.finish_reason == "stop" else "length")
    assert details["seed"] is None

    sampled = {"temperature": 0.7, "top_k": 9, "seed": 5, "max_new_tokens": 8, "details": True}
    answer = client.post("/generate", {"inputs": TEXTS[0], "parameters": sampled})
    options = {"temperature": 0.7, "top_k": 9, "seed": 5, "max_new_tokens": 8, "num_beams": 1}
    assert answer.json["generated_text"] == model.generate(TEXTS[0], **options)
    assert answer.json["details"]["seed"] == 5

    plain = client.post("/generate", {"inputs": TEXTS[0], "parameters": {"max_new_tokens": 8}})
    assert set(plain.json) == {"generated_text"}
    stop = plain.json["generated_text"][2:5]
    parameters = {"max_new_tokens": 8, "stop": [stop], "details": True}
    cut = client.post("/generate", {"inputs": TEXTS[0], "parameters": parameters}).json
    assert cut["generated_text"].endswith(stop)
    assert cut["details"]["finish_reason"] == "stop_sequence"
    assert plain.json["generated_text"].startswith(cut["generated_text"])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"return_full_text": True}, "return_full_text is not supported"),
        ({"best_of": 2}, "best_of is not supported"),
        ({"watermark": True}, "watermark is not supported"),
        ({"temperature": 0}, "temperature is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_generate_refuses(client: Client, parameters: dict[str, object], message: str) -> None:
    answer = client.post("/generate", {"inputs": "a", "parameters": parameters})
    assert answer.status == 422, answer.json
    assert message in str(answer.json)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": "a", "model": "minilm"}, 422, ""),
        (
            {"inputs": "a", "parameters": {"tgt_lang": "fr"}},
            422,
            "tgt_lang is 'fr', but this model's",
        ),
        ({"inputs": "a", "model": "mbart"}, 422, "tgt_lang is None, expected one of"),
        ({"inputs": 5}, 422, "inputs"),
        ({"inputs": "a", "no_such_field": 1}, 422, "no_such_field is not supported"),
        ({"inputs": ["a"] * 9}, 422, "inputs"),
        ({"inputs": "a", "parameters": {"split": "words"}}, 422, "split is"),
        ({"inputs": "a", "parameters": {"truncation": "x"}}, 422, "truncation is not supported"),
        (
            {"inputs": "a", "parameters": {"generate_parameters": {"num_beams": 0}}},
            422,
            "generate_parameters.num_beams is 0",
        ),
    ],
)
def test_refused(client: Client, body: dict[str, object], status: int, message: str) -> None:
    answer = client.post("/translate", body)
    assert answer.status in (status, 400, 413, 424), answer.json
    assert message in str(answer.json)
    assert client.post("/translate", {"inputs": "a"}).status == 200
