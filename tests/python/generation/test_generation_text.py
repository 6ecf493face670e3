"""`TextModel.generate` and `chat`: prompts in, text out, over an engine whose tokens are known."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import pydoc
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from fake_engine import FakeNative, fake_session
from packhorse import Generation, TextModel
from packhorse.text import TextStreaming, TextTokenizer
from packhorse.text.generation.options import ChatCall, GenerateCall
from packhorse_weights.generation_files import GenerationFiles
from tiny_tokenizer import with_kind

EOS = 3
STORY = "the cat sat on the mat. who is that?"
TEMPLATE = "{% for m in messages %}{{ m.role }}, {{ m.content }}. {% endfor %}"
ENDLESS: Any = {"max_new_tokens": 10**9}
FILES = GenerationFiles((EOS,), {}, {"default": TEMPLATE, "short": "on"}, {})


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("generation") / "model"
    tokenizer = TextTokenizer.load(with_kind(GOLDEN / "qwen3", folder, request.param))
    if request.param == "pieces":  # this kind's files bring no decoder
        from tokenizers import decoders

        tokenizer.backend.decoder = decoders.Metaspace()
    return tokenizer


class Model(TextModel):
    """Says a story to every prompt."""

    @property
    def native(self) -> FakeNative:
        engine: Any = self.session._engine  # type: ignore[attr-defined]
        assert isinstance(engine, FakeNative)
        return engine


def make_model(
    tokenizer: TextTokenizer,
    text: str = STORY,
    files: GenerationFiles = FILES,
    *,
    forever: bool = False,
    **options: Any,
) -> Model:
    said = tokenizer.plain_ids(text).tolist()

    def script(prompt: list[int], number: int) -> Iterable[int]:
        yield from said[number:]
        while forever:
            yield said[-1]
        yield EOS

    session = fake_session(script, 104, eos_ids=files.eos_ids, **options)
    return Model(session, tokenizer, files=files)


@pytest.fixture
def model(tokenizer: TextTokenizer) -> Iterator[Model]:
    with make_model(tokenizer) as model:
        yield model


def test_one_text_in_one_text_out(model: Model) -> None:
    assert model.generate("the dog").strip() == STORY
    assert [text.strip() for text in model.generate(["the dog", "a"])] == [STORY, STORY]
    assert model.generate(iter([])) == []


def test_prompt_and_text_are_the_text_of_all_tokens(model: Model) -> None:
    made = model.generate("a dog", details=True)
    (request,) = model.native.submitted
    prompt = model.tokenizer.decode(request._prompt, skip_special=True)
    ids = [*request._prompt, *made.ids]
    assert prompt + made.text == model.tokenizer.decode(ids, skip_special=True)


def test_details(model: Model) -> None:
    made = model.generate("the dog", details=True, logprobs=2)
    assert isinstance(made, Generation)
    assert (made.finish_reason, made.ids[-1]) == ("stop", EOS)
    assert made.logprobs is not None
    assert made.top_logprobs is not None
    assert len(made.logprobs) == len(made.top_logprobs) == len(made.ids)
    assert [len(row) for row in made.top_logprobs] == [2] * len(made.ids)
    assert made.usage.new_tokens == len(made.ids)
    assert made.usage.prompt_tokens == len(model.native.submitted[0]._prompt)
    assert model.generate("the dog", details=True).logprobs is None


def test_several_texts_of_one_prompt(model: Model) -> None:
    made = model.generate("the dog", n=3, details=True)
    assert [len(one.ids) for one in made] == [len(made[0].ids) - i for i in range(3)]
    texts = model.generate(["a", "the"], n=2)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2


def test_more_prompts_than_the_queue_takes(model: Model) -> None:
    texts = model.generate(["the dog"] * 30, max_new_tokens=2)
    assert len(texts) == 30
    assert len(set(texts)) == 1


def test_a_stop_string_cuts_the_text(model: Model) -> None:
    made = model.generate("the dog", stop=["t on", "who"], details=True)
    assert (made.text.strip(), made.finish_reason) == ("the cat sa", "stop")
    whole = model.generate("the dog", details=True)
    assert made.ids == whole.ids[: len(made.ids)]
    assert made.usage.new_tokens == len(made.ids) < len(whole.ids)
    assert model.generate("the dog", stop="nothing of it") == whole.text


def test_a_stop_string_ends_the_request(tokenizer: TextTokenizer) -> None:
    with make_model(tokenizer, forever=True, max_context=100000) as model:
        assert (
            model.generate(["a", "the"], stop="mat", **ENDLESS)[1].strip() == "the cat sat on the"
        )
        assert model.native.cancelled == 2


def test_the_default_length(tokenizer: TextTokenizer) -> None:
    """256 tokens, or what the files or the caller say; less where the context ends before."""
    conversation = [{"role": "the", "content": "dog"}]
    with make_model(tokenizer, forever=True, max_context=1000) as model:
        made = model.generate("the", details=True)
        assert (len(made.ids), made.finish_reason) == (256, "length")
        assert len(model.chat(conversation, details=True).ids) == 256
        stream = model.generate("the", stream=True)
        list(stream)
        assert len(stream.result.ids) == 256
        assert len(model.generate("the", max_new_tokens=300, details=True).ids) == 300
    files = GenerationFiles((EOS,), {"max_new_tokens": 5})
    with make_model(tokenizer, files=files, forever=True, max_context=1000) as model:
        assert len(model.generate("the", details=True).ids) == 5
    with make_model(tokenizer, forever=True, max_context=100) as model:
        made = model.generate("the", details=True)
        assert made.usage.prompt_tokens + len(made.ids) == 100


def test_there_is_no_source_to_attend_to(model: Model) -> None:
    with pytest.raises(ValueError, match="return_attention is True.* no encoder beside its decod"):
        model.generate("the", details=True, return_attention=True)


@pytest.mark.parametrize("prompt", [None, 3, b"a", {"a": 1}, {"a"}])
def test_prompts_that_are_none(model: Model, prompt: Any) -> None:
    with pytest.raises(ValueError, match="prompts is .*, expected a text, or texts in an order"):
        model.generate(prompt)


def test_signatures_list_every_option() -> None:
    """Signatures are for `help`, which shows them."""
    for method in (TextModel.generate, TextModel.generate_async):
        shown = inspect.signature(method).parameters
        assert GenerateCall.__annotations__.keys() <= shown.keys()
        assert all(shown[name].default is None for name in GenerateCall.__annotations__)
        assert all(one.kind is not one.VAR_KEYWORD for one in shown.values())
    for method in (TextModel.chat, TextModel.chat_async):
        shown = inspect.signature(method).parameters
        assert ChatCall.__annotations__.keys() <= shown.keys()
        assert shown["add_generation_prompt"].default is True
        assert shown["max_new_tokens"].annotation == "int | None"
    assert "tools" in inspect.signature(TextModel.apply_chat_template).parameters
    embed = inspect.signature(TextModel.embed).parameters
    assert list(inspect.signature(TextModel.embed_async).parameters) == list(embed)
    assert "max_new_tokens" in pydoc.render_doc(TextModel)


def test_a_stop_string_that_is_a_special_token(tokenizer: TextTokenizer) -> None:
    files = GenerationFiles()
    with make_model(tokenizer, files=files, forever=False) as model:
        mask = tokenizer.special_id("mask")
        assert mask is not None
        made = model.generate("the", stop="[MASK]", details=True)
        assert model.native.submitted[0].sampling.stop_ids == (mask,)
        assert made.text.strip() == STORY


def test_what_ends_a_text_is_not_in_it(tokenizer: TextTokenizer) -> None:
    dot = tokenizer.plain_ids("mat.").tolist()[-1]
    with make_model(tokenizer) as model:
        made = model.generate("the", stop_ids=[dot], details=True)
        assert (made.text.strip(), made.ids[-1]) == ("the cat sat on the mat", dot)


def test_stream(tokenizer: TextTokenizer) -> None:
    with make_model(tokenizer, pause_s=0.002) as model:
        stream = model.generate("the dog", stream=True)
        assert isinstance(stream, TextStreaming)
        with pytest.raises(RuntimeError, match="not ended"):
            _ = stream.result
        pieces = list(stream)
        whole = model.generate("the dog", details=True)
        assert "".join(pieces) == whole.text
        assert len(pieces) > 5
        assert stream.result == whole


def test_a_stream_holds_back_what_may_be_a_stop_string(model: Model) -> None:
    pieces = list(model.generate("the dog", stream=True, stop=["sat on a", "mat."]))
    assert "".join(pieces).strip() == "the cat sat on the"


@pytest.mark.parametrize("how", ["close", "with", "forget"])
def test_a_stream_that_is_left_cancels_its_request(tokenizer: TextTokenizer, how: str) -> None:
    with make_model(tokenizer, forever=True, max_context=10**9) as model:
        stream = model.generate("the dog", stream=True, **ENDLESS)
        next(stream)
        if how == "close":
            stream.close()
        elif how == "with":
            with stream:
                pass
        else:
            del stream
        assert model.native.submitted[0].wait(10)
        assert model.native.cancelled == 1


def test_async(model: Model) -> None:
    async def read(prompt: str) -> str:
        return "".join([piece async for piece in model.generate_async(prompt)])

    async def run() -> list[str]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        texts = await asyncio.gather(*(read("the dog") for _ in range(20)))
        ticking.cancel()
        assert ticks > 1
        return texts

    assert {text.strip() for text in asyncio.run(run())} == {STORY}


@pytest.mark.parametrize("how", ["break", "cancel"])
def test_async_that_is_left_cancels_its_request(tokenizer: TextTokenizer, how: str) -> None:
    async def leave(model: Model) -> None:
        async for _ in model.generate_async("the dog", **ENDLESS):
            break

    async def cancel(model: Model) -> None:
        async def read() -> None:
            async for _ in model.generate_async("the dog", **ENDLESS):
                reading.set()

        reading = asyncio.Event()
        task = asyncio.create_task(read())
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with make_model(tokenizer, forever=True, max_context=10**9) as model:
        asyncio.run((leave if how == "break" else cancel)(model))
        assert model.native.submitted[0].wait(10)
        assert model.native.cancelled == 1


def test_chat(model: Model) -> None:
    messages = [{"role": "the", "content": "dog"}, {"role": "a", "content": "cat"}]
    assert model.chat(messages) == STORY
    assert "".join(model.chat(messages, stream=True)) == STORY
    assert model.chat([messages, messages[:1]], details=True)[1].text == STORY
    assert model.chat(messages, n=2)[0] == STORY
    (first, *_) = model.native.submitted
    expected = model.tokenizer.plain_ids("the, dog. a, cat. ").tolist()
    assert first._prompt == expected
    assert model.apply_chat_template(messages) == "the, dog. a, cat. "
    model.chat(messages, chat_template="short")
    assert model.native.submitted[-1]._prompt == model.tokenizer.plain_ids("on").tolist()

    async def read() -> str:
        return "".join([piece async for piece in model.chat_async(messages)])

    assert asyncio.run(read()) == STORY


def test_threads(model: Model) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(model.generate(["the dog", "a cat"])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [text.strip() for text in found] == [STORY] * 16


def sampling_of(model: Model) -> Any:
    return model.native.submitted[-1].sampling


def test_more_defaults_of_the_files(tokenizer: TextTokenizer) -> None:
    (prompt,) = tokenizer.encode(["the dog"], None, first=0, pairs=False, table=104).ids
    long = prompt.size + 5
    defaults = {
        "max_length": long,
        "min_length": long - 2,
        "suppress_tokens": [3, 5, 10**5],
        "stop": [" mat"],
        "renormalize_logits": True,
    }
    with make_model(tokenizer, files=GenerationFiles((EOS,), defaults, {}, {})) as model:
        model.generate("the dog")
        sampling = model.native.submitted[-1].sampling
        assert (sampling.max_new_tokens, sampling.min_new_tokens) == (5, 3)
        assert sampling.suppress_tokens == (3, 5)  # the model has no other
        model.generate("the dog", max_new_tokens=9, min_new_tokens=1, suppress_tokens=[])
        sampling = model.native.submitted[-1].sampling
        assert (sampling.max_new_tokens, sampling.min_new_tokens) == (9, 1)
        assert sampling.suppress_tokens == ()
        text = model.generate("the dog", max_new_tokens=30, details=True)
        assert (text.text.strip(), text.finish_reason) == ("the cat sat on the", "stop")
        assert model.generate("the dog", max_new_tokens=30, stop=["who"]).strip().endswith("mat.")
        with pytest.raises(ValueError, match=f"max_length {long}, .*: give max_new_tokens"):
            model.generate(STORY)
        with pytest.raises(ValueError, match="renormalize_logits"):
            model.generate("the dog", num_beams=2)


def test_bad_words(model: Model) -> None:
    def ids_of(text: str) -> tuple[int, ...]:
        return tuple(model.tokenizer.plain_ids(text).tolist())

    model.generate("the dog", bad_words="cat", bad_words_ids=[[7, 8]])
    given = model.native.submitted[-1].sampling.bad_words_ids
    assert given[:2] == ((7, 8), ids_of("cat"))
    assert set(given[1:]) == {ids_of("cat"), ids_of(" cat")}
    model.chat([{"role": "the", "content": "dog"}], bad_words=[" cat", "who"])
    given = model.native.submitted[-1].sampling.bad_words_ids
    assert set(given) == {ids_of(text) for text in ("cat", " cat", "who", " who")}
    for wrong in ("", [""], [3]):
        with pytest.raises(ValueError, match=r"bad_words\[0\] is .*, expected a text"):
            model.generate("the dog", bad_words=wrong)
    with pytest.raises(ValueError, match="bad_words is 3, expected a text or a list of texts"):
        model.generate("the dog", bad_words=3)  # type: ignore[call-overload]


def test_empty_lists(model: Model) -> None:
    with pytest.raises(ValueError, match="allowed_ids is .*, expected one token id at least"):
        model.generate("the dog", allowed_ids=[])
    for harmless in ("stop", "stop_ids", "bad_words", "bad_words_ids", "suppress_tokens"):
        assert model.generate("the dog", **{harmless: []}).strip() == STORY


def test_a_folder_whose_settings_are_not_supported(tmp_path: Path) -> None:
    folder = with_kind(GOLDEN / "generation" / "llama", tmp_path / "lm", "bytes")
    (folder / "generation_config.json").write_text('{"guidance_scale": 2.0}')
    with pytest.raises(ValueError, match="guidance_scale is 2.0"):
        TextModel.load(folder, kv_tokens=64)
    for wrong, message in (
        ('{"suppress_tokens": "abc"}', "generation_config.json: suppress_tokens is 'abc'"),
        ('{"bad_words_ids": [[]]}', r"generation_config.json: bad_words_ids\[0\] is \[\]"),
        ('{"stop_strings": [3]}', r"generation_config.json: stop\[0\] is 3"),
    ):
        (folder / "generation_config.json").write_text(wrong)
        with pytest.raises(ValueError, match=message):
            TextModel.load(folder, kv_tokens=64)
    with TextModel.load(folder, kv_tokens=64, generation_config=False) as model:
        assert model.session.generates
    with TextModel.load(folder, kv_tokens=0) as model:  # the model embeds
        assert not model.session.generates


def test_defaults_of_the_files(tokenizer: TextTokenizer) -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 4}
    files = GenerationFiles((EOS,), defaults, {}, {})
    with make_model(tokenizer, files=files) as model:
        assert model.generate("the", details=True).finish_reason == "length"
        sampling = sampling_of(model)
        assert {name: getattr(sampling, name) for name in defaults} == defaults
        model.generate("the", temperature=0.0, top_p=None, max_new_tokens=9)
        sampling = sampling_of(model)
        assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0, 0.9, 9)
        model.generate("the", num_beams=2)
        assert (sampling_of(model).temperature, sampling_of(model).top_p) == (0, 1)


def test_ignore_eos(model: Model) -> None:
    model.generate("the", ignore_eos=True, max_new_tokens=30)
    assert sampling_of(model).ignore_eos


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temprature": 1}, TypeError, "unexpected keyword argument 'temprature'"),
        ({"temperature": -1}, ValueError, "temperature is -1, expected a number from 0 on"),
        ({"top_p": 0.5}, ValueError, "top_p is 0.5, but the most probable token"),
        ({"stop": ["a", ""]}, ValueError, r"stop\[1\] is ''"),
        ({"regex": "a", "choices": ["b"]}, ValueError, "regex and choices were given"),
        ({"stream": True, "n": 2}, ValueError, "n is 2, expected 1"),
        ({"stream": True, "details": True}, ValueError, "its `result` is one"),
        ({"stream": True, "num_beams": 2}, ValueError, "num_beams must be 1"),
        ({"max_new_tokens": 1, "n": 0}, ValueError, "n is 0, expected"),
    ],
)
def test_options_that_are_refused(
    model: Model, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.generate("the", **options)
    assert model.native.submitted == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["the", 3], r"prompts\[1\] is 3, expected a text"),
        (["the", ("a", "b")], r"prompts\[1\]"),
        (["the", "the dog " * 400], r"prompts\[1\]: the prompt has \d+ tokens, the context 512"),
    ],
)
def test_prompts_that_are_refused(model: Model, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.generate(prompt)
    assert all(request.wait(10) for request in model.native.submitted)
    with pytest.raises(ValueError, match="stream=True takes one prompt"):
        model.generate(prompt, stream=True)


def test_what_an_engine_fails_with(tokenizer: TextTokenizer) -> None:
    with make_model(tokenizer) as model:
        model.native._script = lambda prompt, number: iter([1, 1 // 0])
        with pytest.raises(RuntimeError, match=r"prompts\[0\]: ZeroDivisionError"):
            model.generate(["the", "a"])


def test_a_model_that_generates_gives_nothing_else(model: Model) -> None:
    with pytest.raises(ValueError, match="kv_tokens=0 for hidden states and embeddings"):
        model.embed("a text")


def test_a_model_that_does_not_generate_says_so(minilm: Path) -> None:
    with TextModel.load(minilm, threads=1) as model:
        for call in (
            lambda: model.generate("a"),
            lambda: model.chat([{"role": "user", "content": "a"}]),
            lambda: model.generate_async("a"),
        ):
            with pytest.raises(ValueError, match="not loaded for generation: use embed"):
                call()
    with pytest.raises(ValueError, match="kv_tokens is 64, .* no head of a causal language model"):
        TextModel.load(minilm, kv_tokens=64)


def test_copies_and_closing(model: Model) -> None:
    other = copy.deepcopy(model)
    assert other.session is model.session
    with pytest.raises(TypeError, match="not made by Session.load"):
        pickle.dumps(model)
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        other.generate("the")
