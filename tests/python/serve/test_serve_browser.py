"""The page at / of `packhorse serve`, in headless Chromium (nox -s test-browser).

PACKHORSE_CHROMIUM    the browser, where it is not on PATH nor one that playwright has installed
PACKHORSE_SCREENSHOTS a folder for pictures of the page: docs/images has some of them
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse import TextModel
from packhorse.audio import AudioModel
from packhorse.image import ImageModel
from packhorse.load_options import ServedCall
from packhorse.serve import ModelSettings
from picture_models import picture_model, write_pictures
from serve_room import PACKAGES, Client, make_models, serving, settings_for, wait_until
from text_to_text_models import make_folder
from tiny_tokenizer import with_tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

for package in PACKAGES:
    pytest.importorskip(package)
sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chrome-headless-shell")
SIZE = {"width": 1000, "height": 560}
EMBED, RERANK, CLASSIFY, TAG = "Compare texts", "Rerank", "Classify", "Find entities"
ANSWER, SPARSE, CHAT, CONTINUE = "Answer", "Words of a text", "Chat", "Continue a text"
NAME, CLASSES, PICTURES = "Name a picture", "Classify a picture", "Compare pictures"
SPEECH = "Write down speech"
TRANSLATE, SUMMARIZE, CONVERT = "Translate", "Summarize", "Text to text"
TABS = {
    "minilm": [EMBED],
    "lm": [CHAT, CONTINUE],
    "reranker": [RERANK],
    "classifier": [CLASSIFY],
    "tagger": [TAG],
    "reader": [ANSWER],
    "splade": [SPARSE],
    "bge-m3": [EMBED, SPARSE],
    "clip": [EMBED, NAME, PICTURES],
    "deit": [CLASSES, PICTURES],
    "whisper": [SPEECH],
    "marian": [TRANSLATE, SUMMARIZE, CONVERT],
    "mbart": [TRANSLATE, SUMMARIZE, CONVERT],
}
TEXTS = [
    "Mules and donkeys carried goods across the mountains.",
    "Which animals transport cargo?",
    "The committee meets again on Thursday.",
]


class Room(NamedTuple):
    client: Client
    folders: dict[str, Path]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.client.port}"


@pytest.fixture(scope="module")
def room(minilm: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    root = tmp_path_factory.mktemp("models")
    folders = {"minilm": minilm, "lm": smollm2, **make_models(root)}
    folders["reader"] = with_tokenizer(GOLDEN / "bert-answers", root / "reader")
    for name in ("clip", "deit"):
        folders[name] = picture_model(name, root / name)
    folders["whisper"] = GOLDEN / "speech" / "whisper"
    for name in ("marian", "mbart"):
        folders[name] = make_folder(root / name, name)
    own: dict[str, ServedCall] = {
        **{name: {"kv_tokens": 4096} for name in ("lm", "marian", "mbart")},
        "whisper": {"kv_tokens": 8192},
    }
    models = [ModelSettings(name, str(folders[name]), options=own.get(name, {})) for name in TABS]
    with serving(settings_for(*models)) as (client, _):
        yield Room(client, folders)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("PACKHORSE_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(
                executable_path=found,
                # A microphone that beeps, which every page may hear.
                args=[
                    "--no-sandbox",
                    "--use-fake-device-for-media-stream",
                    "--use-fake-ui-for-media-stream",
                ],
            )
        except sync_api.Error as error:
            pytest.skip(f"no Chromium: {error.message.splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page. What is shown on it asks its own server alone, and fails in nothing but what
    the server refuses."""
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    found = context.new_page()
    asked: list[str] = []
    opened: list[str] = []
    failures: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    found.on("framenavigated", lambda frame: opened.append(frame.url))
    found.on("pageerror", lambda error: failures.append(error.message))
    found.on("console", lambda line: failures.append(line.text) if line.type == "error" else None)
    yield found
    assert {server_of(url) for url in asked} <= {server_of(url) for url in opened}
    refused = re.compile(
        "Failed to load resource: the server responded with a status of 4|.*TrustedHTML.* blocked"
    )
    assert [line for line in failures if not refused.match(line)] == []
    context.close()


def server_of(url: str) -> str:
    return re.sub(r"^(http://127.0.0.1:\d+)/.*", r"\1", url)


def opened(page: Page, room: Room, model: str, task: str | None = None) -> Any:
    """The form of a task of a model."""
    page.goto(room.address)
    page.get_by_role("combobox", name="Model").select_option(model)
    page.get_by_role("tab", name=task or TABS[model][0], exact=True).click()
    return page.get_by_role("tabpanel")


def screenshot(page: Page, name: str) -> None:
    folder = os.environ.get("PACKHORSE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def load(room: Room, name: str) -> TextModel:
    return TextModel.load(room.folders[name], threads=1)


# --- models


def test_a_model_is_chosen_and_its_forms_are_shown(page: Page, room: Room) -> None:
    page.goto(room.address)
    expect(page.get_by_role("combobox", name="Model").locator("option")).to_have_text(list(TABS))
    for model, tabs in TABS.items():
        page.get_by_role("combobox", name="Model").select_option(model)
        expect(page.get_by_role("tab")).to_have_text(tabs)
        expect(page.locator("main form:visible")).to_have_count(1)
    expect(page.locator("#about")).to_contain_text("float32, CPU")
    page.get_by_role("combobox", name="Model").select_option("lm")
    expect(page.locator("#about")).to_contain_text("4- to 8-bit weights as stored in the file, CPU")
    expect(page.get_by_label("API key")).to_be_hidden()


def test_a_key_is_asked_for_and_kept(page: Page, room: Room) -> None:
    settings = settings_for(f"tagger={room.folders['tagger']}", api_key=("secret",))
    key = page.get_by_label("API key")
    error = page.locator(".error:visible")
    with serving(settings) as (client, _):
        page.goto(f"http://127.0.0.1:{client.port}")
        expect(page.get_by_role("heading", name="asks for an API key")).to_be_visible()
        expect(key).to_be_focused()
        expect(error).to_have_count(0)
        screenshot(page, "page_key")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(error).to_have_text("The server does not take this key.")
        key.fill("secret")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("tab")).to_have_text(TABS["tagger"])
        expect(key).to_be_hidden()
        page.reload()
        expect(page.get_by_role("tab")).to_have_text(TABS["tagger"])
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.get_by_role("button", name="Find").click()
        command = page.locator(".requests pre")
        expect(command).to_contain_text('"Authorization: Bearer $PACKHORSE_API_KEY"')
        assert "secret" not in (command.text_content() or "")
        page.get_by_role("button", name="Change the key").click()
        key.fill("another")
        page.keyboard.press("Enter")
        expect(error).to_have_text("The server does not take this key.")
        expect(page.get_by_role("tab")).to_have_count(0)
        page.goto("about:blank")


def test_keyboard_and_labels(page: Page, room: Room) -> None:
    opened(page, room, "lm", CONTINUE)
    page.get_by_role("tab", name=CONTINUE).press("ArrowRight")
    expect(page.get_by_role("tab", name=CHAT)).to_be_focused()
    expect(page.get_by_role("tab", selected=True)).to_have_text(CHAT)
    page.keyboard.press("End")
    expect(page.get_by_role("tab", selected=True)).to_have_text(CONTINUE)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, select')]"
        ".filter((one) => one.labels.length === 0).map((one) => one.outerHTML)"
    )
    assert unnamed == []
    form = opened(page, room, "reranker")
    form.locator("[name=texts]").press("Control+Enter")
    expect(form.locator(".bars li")).to_have_count(3)


# --- tasks


def test_similarity_is_a_picture(page: Page, room: Room) -> None:
    with load(room, "minilm") as model:
        vectors = model.embed(TEXTS).astype(np.float64)
    cosines = vectors @ vectors.T
    form = opened(page, room, "minilm")
    form.get_by_role("button", name="Compare").click()
    angle = round(np.degrees(np.arccos(cosines[0, 1])))
    picture = form.get_by_role("img", name=f"Cosine {cosines[0, 1]:.4f}, an angle of {angle} deg")
    expect(picture).to_be_visible()
    expect(form.get_by_role("img", name="The 384 values")).to_have_count(2)
    page.mouse.move(0, 0)
    screenshot(page, "page_compare")

    form.get_by_role("button", name="Add a text").click()
    page.keyboard.type(TEXTS[2])
    page.keyboard.press("Control+Enter")
    cells = form.get_by_role("table", name="Cosines").locator("td:not(:empty)")
    expect(cells).to_have_text([f"{value:.3f}" for value in cosines.ravel()])


def test_rerank(page: Page, room: Room) -> None:
    texts = ["a dog", "the cat sat on the mat", "where was paris"]
    with load(room, "reranker") as model:
        order = np.argsort(-model.score("the cat", texts))
    form = opened(page, room, "reranker")
    form.locator("[name=query]").fill("the cat")
    form.locator("[name=texts]").fill("\n".join(texts) + "\n\n")
    form.get_by_role("button", name="Rerank").click()
    expect(form.locator("ol .what")).to_have_text([texts[i] for i in order])


@pytest.mark.parametrize("pair", ["", "a dog"])
def test_classify(page: Page, room: Room, pair: str) -> None:
    with load(room, "classifier") as model:
        (labels,) = model.classify([{"text": "the cat", "text_pair": pair or None}], top_k=None)
    form = opened(page, room, "classifier")
    form.locator("[name=text]").fill("the cat")
    form.locator("[name=pair]").fill(pair)
    form.get_by_role("button", name="Classify").click()
    expect(form.locator(".what")).to_have_text([one["label"] for one in labels])
    expect(form.locator(".score")).to_have_text([f"{one['score']:.4f}" for one in labels])


def test_entities_in_colour(page: Page, room: Room) -> None:
    """Also after a character that takes two units of a string of JavaScript."""
    text = "\U0001f40e the cat of mark sat in paris, and a dog was on the mat"
    with load(room, "tagger") as model:
        entities = model.classify_tokens(text, aggregation_strategy="first")
    form = opened(page, room, "tagger", TAG)
    form.locator("[name=text]").fill(text)
    form.locator("[name=strategy]").select_option("first")
    form.get_by_role("button", name="Find").click()
    marks = form.locator("mark")
    expect(marks).to_have_text([one["word"] + one["entity_group"] for one in entities])
    colours = marks.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    of_kind = {one["entity_group"]: colour for one, colour in zip(entities, colours, strict=True)}
    assert len(entities) > 2
    assert len(set(of_kind.values())) == len(of_kind) > 1
    assert [of_kind[one["entity_group"]] for one in entities] == colours
    screenshot(page, "page_entities")


def test_answer_and_what_the_server_refuses(page: Page, room: Room) -> None:
    context = "the cat sat on the mat in paris, where mark was"
    with load(room, "reader") as model:
        answer = model.answer("where was mark", context)
    form = opened(page, room, "reader", ANSWER)
    form.locator("[name=question]").fill("where was mark")
    form.locator("[name=context]").fill(context)
    form.get_by_role("button", name="Answer").click()
    expect(form.locator("mark")).to_have_text(answer["answer"])
    form.locator("[name=question]").fill("where " * 200)
    form.locator("[name=context]").fill(context * 9)
    form.get_by_role("button", name="Answer").click()
    expect(form.get_by_role("alert")).to_contain_text("the question has")
    expect(form.locator("mark")).to_have_count(0)
    expect(form.get_by_role("button", name="Answer")).to_be_enabled()


def test_words_of_a_text(page: Page, room: Room) -> None:
    with load(room, "splade") as model:
        ids, weights = model.embed_sparse("the cat")
        order = np.argsort(-weights, kind="stable")[:5]
        words = [model.tokenizer.decode([int(ids[i])], skip_special=False) for i in order]
    form = opened(page, room, "splade")
    form.locator("[name=text]").fill("the cat")
    form.get_by_role("button", name="Show").click()
    expect(form.locator(".bars li")).not_to_have_count(0)
    assert form.locator(".what").all_inner_texts()[:5] == words


# --- pictures


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    return write_pictures(tmp_path, 3)


def test_a_picture_is_named(page: Page, room: Room, pictures: list[Path]) -> None:
    labels = ["the cat", "mat", "a dog"]
    with ImageModel.load(room.folders["clip"], threads=1) as model:
        (found,) = model.zero_shot([pictures[1]], labels, template="on {}")
    form = opened(page, room, "clip", NAME)
    expect(page.locator("#about")).to_contain_text("pictures, texts of up to 16 tokens")
    form.locator("[name=picture]").set_input_files(pictures[1])
    form.locator("[name=labels]").fill("\n".join(labels) + "\n\n")
    form.locator("[name=template]").fill("on {}")
    form.get_by_role("button", name="Name").click()
    expect(form.locator(".what")).to_have_text([one["label"] for one in found])
    expect(form.locator(".score")).to_have_text([f"{one['score']:.4f}" for one in found])
    expect(form.get_by_role("img", name=pictures[1].name)).to_be_visible()
    assert len(form.locator(".requests pre").text_content() or "") < 600
    form.locator("[name=template]").fill("on")
    form.get_by_role("button", name="Name").click()
    expect(form.get_by_role("alert")).to_contain_text("a text with {} where the label goes")
    expect(form.locator(".what")).to_have_count(0)


def test_a_picture_is_classified(page: Page, room: Room, pictures: list[Path]) -> None:
    with ImageModel.load(room.folders["deit"], threads=1) as model:
        (found,) = model.classify([pictures[0]])
    form = opened(page, room, "deit", CLASSES)
    form.locator("[name=picture]").set_input_files(pictures[0])
    form.get_by_role("button", name="Classify").click()
    expect(form.locator(".what")).to_have_text([one["label"] for one in found])
    pictures[0].write_text("no picture")
    form.locator("[name=picture]").set_input_files(pictures[0])
    form.get_by_role("button", name="Classify").click()
    expect(form.get_by_role("alert")).to_contain_text("no JPEG, PNG or WebP image")


def test_pictures_are_compared(page: Page, room: Room, pictures: list[Path]) -> None:
    with ImageModel.load(room.folders["deit"], threads=1) as model:
        vectors = model.embed(pictures).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    form = opened(page, room, "deit", PICTURES)
    form.locator("[name=picture]").set_input_files(pictures)
    form.get_by_role("button", name="Compare").click()
    cells = form.get_by_role("table", name="Cosines").locator("td:not(:empty)")
    expect(cells).to_have_text([f"{value:.3f}" for value in (vectors @ vectors.T).ravel()])
    expect(form.locator("figcaption")).to_have_text([path.name for path in pictures])


# --- text to text


def test_a_text_is_translated(page: Page, room: Room) -> None:
    text = "the cat sat on the mat"
    with TextModel.load(room.folders["mbart"], kv_tokens=4096) as model:
        plain, beams = (
            model.translate(text, source="de_DE", target="fr_XX", details=True, **options)
            for options in ({"max_new_tokens": 5}, {"num_beams": 3, "n": 2})
        )
    form = opened(page, room, "mbart")
    source, target = (form.locator(f"[name={name}]") for name in ("source", "target"))
    form.locator("[name=text]").fill(text)
    expect(source.locator("option").first).to_have_text("by default English (en_XX)")
    expect(source.locator("option")).to_have_count(target.locator("option").count())
    # A model that must be told a target is asked nothing without one.
    form.get_by_role("button", name="Translate").click()
    assert target.evaluate("(select) => select.validity.valueMissing")
    expect(form.locator(".requests")).to_have_count(0)
    source.select_option("German (de_DE)")
    target.select_option("fr_XX")
    form.locator("[name=most]").fill("5")
    form.get_by_role("button", name="Translate").click()
    expect(form.locator(".result")).to_have_text(plain.text)
    form.locator("[name=most]").fill("")
    form.locator("[name=beams]").fill("3")
    form.locator("[name=n]").fill("2")
    form.get_by_role("button", name="Translate").click()
    expect(form.locator("ol .what")).to_have_text([one.text for one in beams])
    expect(form.locator("ol .score")).to_have_text([f"{one.score:.4f}" for one in beams])
    command = form.locator(".requests pre").text_content() or ""
    assert '"src_lang":"de_DE","tgt_lang":"fr_XX"' in command
    screenshot(page, "page_translate")
    form.locator("[name=n]").fill("4")
    form.get_by_role("button", name="Translate").click()
    expect(form.get_by_role("alert")).to_contain_text("num_return_sequences is 4")
    expect(form.locator(".what")).to_have_count(0)


def test_a_model_of_one_direction(page: Page, room: Room) -> None:
    with TextModel.load(room.folders["marian"], kv_tokens=4096) as model:
        translated, summary = model.translate("hello world"), model.summarize("hello world")
        made = model.generate("hello world")
    form = opened(page, room, "marian")
    expect(form.locator("[name=target] option")).to_have_text(
        ["by default German (de)", "German (de)"]
    )
    form.locator("[name=text]").fill("hello world")
    form.get_by_role("button", name="Translate").click()
    expect(form.locator(".result")).to_have_text(translated)
    form = opened(page, room, "marian", SUMMARIZE)
    form.locator("[name=text]").fill("hello world")
    form.get_by_role("button", name="Summarize").click()
    expect(form.locator(".result")).to_have_text(summary)
    form = opened(page, room, "marian", CONVERT)
    form.locator("[name=prompt]").fill("hello world")
    form.locator("[name=most]").fill("12")
    form.get_by_role("button", name="Write").click()
    expect(form.locator(".figures")).to_contain_text("tokens read")
    expect(form.locator(".result")).to_have_text(made)


# --- speech


def test_speech_is_written_down(page: Page, room: Room, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    file = tmp_path / "it's.flac"
    noise = np.random.default_rng(4).normal(0, 0.1, 20000)
    soundfile.write(file, noise, 16000)
    with AudioModel.load(room.folders["whisper"], kv_tokens=8192) as model:
        found = model.transcribe(file, task="translate").segments
    assert found
    form = opened(page, room, "whisper", SPEECH)
    expect(page.locator("#about")).to_contain_text(", speech")
    form.locator("[name=audio]").set_input_files(file)
    form.locator("[name=task]").select_option("in English")
    form.get_by_role("button", name="Write down", exact=True).click()
    expect(form.locator(".said .what")).to_have_text([one.text.strip() for one in found])
    expect(form.locator(".said .time").first).to_have_text(re.compile(r"^0:00 to 0:\d\d$"))
    command = form.locator(".requests pre").text_content() or ""
    assert f"{room.address}/v1/audio/translations" in command
    assert "-F 'file=@it'\\''s.flac'" in command
    form.locator("[name=language]").fill("xx")
    form.get_by_role("button", name="Write down", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("language")
    expect(form.locator(".said")).to_have_count(0)


def test_a_recording_is_written_down(page: Page, room: Room) -> None:
    soundfile = pytest.importorskip("soundfile")
    form = opened(page, room, "whisper", SPEECH)
    form.get_by_role("button", name="Record").click()
    stop = form.get_by_role("button", name="Stop and write down")
    expect(stop).to_be_visible()
    page.wait_for_timeout(1500)
    stop.click()
    expect(form.locator(".result")).not_to_be_empty()
    expect(form.get_by_role("button", name="Record")).to_be_visible()
    kept = form.locator("[name=audio]").evaluate(
        "async (input) => [...new Uint8Array(await input.files[0].arrayBuffer())]"
    )
    samples, rate = soundfile.read(io.BytesIO(bytes(kept)))
    assert rate == 16000
    assert samples.ndim == 1
    assert samples.size > 8000
    assert 0.01 < np.abs(samples).max() <= 1


# --- generation


def test_chat_comes_piece_by_piece(page: Page, room: Room) -> None:
    form = opened(page, room, "lm")
    form.get_by_text("Settings").click()
    form.locator("[name=temperature]").fill("0")
    form.locator("[name=most]").fill("24")
    page.evaluate(
        "new MutationObserver((all) => { window.pieces = (window.pieces ?? 0) + all.length; })"
        ".observe(document.querySelector('#log'), { childList: true, subtree: true })"
    )
    messages: list[dict[str, str]] = []
    for said in ("What is the capital of Germany?", "What is the capital of Italy?"):
        messages.append({"role": "user", "content": said})
        body = {"model": "lm", "messages": messages, "temperature": 0, "max_tokens": 24}
        reply = room.client.post("/v1/chat/completions", body).json["choices"][0]["message"]
        messages.append({"role": "assistant", "content": reply["content"]})
        form.locator("[name=message]").fill(said)
        form.locator("[name=message]").press("Enter")
        expect(form.locator(".figures")).to_contain_text("tokens read")
        expect(form.locator(".message.assistant span").last).to_have_text(reply["content"])
    assert page.evaluate("window.pieces") > 10
    expect(form.locator(".message")).to_have_count(4)
    form.get_by_text("Settings").click()
    screenshot(page, "page_chat")
    form.get_by_role("button", name="New conversation").click()
    expect(form.locator(".message")).to_have_count(0)


def test_a_text_is_continued_and_stopped(page: Page, room: Room) -> None:
    form = opened(page, room, "lm", CONTINUE)
    # Counting goes on for long enough that there is something to stop.
    form.locator("[name=prompt]").fill("one, two, three, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,")
    form.locator("[name=temperature]").fill("0")
    form.locator("[name=most]").fill("2000")
    form.get_by_role("button", name="Continue").click()
    expect(form.locator(".result")).to_contain_text(re.compile("11, 12,.{9}", re.DOTALL))
    form.get_by_role("button", name="Stop").click()
    expect(form.locator(".figures")).to_have_text("Stopped.")
    wait_until(lambda: room.client.metric("packhorse_generation_running") == 0)
    form.locator("[name=prompt]").fill("cat " * 9000)
    form.get_by_role("button", name="Continue").click()
    expect(form.get_by_role("alert")).to_contain_text("tokens")


# --- what else there is


def test_requests_are_copied_as_commands(page: Page, room: Room) -> None:
    """All that a form sent, in a form that a shell reads: the same answers come of it."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    form = opened(page, room, "splade")
    form.locator("[name=text]").fill('the cat\'s "mat" \\ $HOME')
    form.get_by_role("button", name="Show").click()
    form.get_by_text("As curl").click()
    expect(form.locator(".requests pre")).to_have_count(2)
    words = form.locator(".what").all_inner_texts()
    answers = []
    for button in form.locator(".requests button").all():
        button.click()
        expect(button).to_have_text("Copied")
        command = page.evaluate("navigator.clipboard.readText()")
        script = 'curl() { printf "%s\\0" "$@"; }\n' + command
        arguments = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True).stdout
        address, h, header, d, body, _ = arguments.split("\0")
        assert (h, d) == ("-H", "-d")
        assert address.startswith(f"{room.address}/")
        name, _, value = header.partition(": ")
        path = address.removeprefix(room.address)
        answers.append(room.client.post(path, body.encode(), headers={name: value}).json)
    assert answers[1] == words
    form.get_by_role("button", name="Show").click()
    expect(form.locator(".requests pre")).to_have_count(2)


def test_figures_of_the_server(page: Page, room: Room) -> None:
    form = opened(page, room, "minilm")
    number = page.locator("#live dt:text-is('tokens read/s') + dd span")
    expect(number).to_have_text("0")
    form.get_by_role("button", name="Compare").click()
    expect(number).not_to_have_text("0")
    assert page.locator("#live polyline").first.get_attribute("points")
    expect(page.locator("#live dt:text-is('requests that wait') + dd span")).to_have_text("0")


def test_nothing_runs_but_its_own_script(page: Page, room: Room) -> None:
    page.goto(room.address)
    refused = (
        "() => { try { document.body.innerHTML = '<b>a</b>'; return false } catch { return true } }"
    )
    assert page.evaluate(refused)
