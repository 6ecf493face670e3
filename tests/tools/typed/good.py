"""A user's file in which mypy --strict finds nothing. Never run, only type-checked."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import packhorse.serve
from packhorse import DeviceArray, DeviceResult, PackedTokens, RunResult, Session, TextModel
from packhorse.load_options import ServedCall
from packhorse.names import AggregationStrategy, Dtype, OutputName
from packhorse.text import Answer, Entity, EntityGroup, Label, TextStreaming, Word

FloatArray = npt.NDArray[np.float32]


def sessions(folder: Path, tensor: DeviceArray, dtype: Dtype, names: list[OutputName]) -> None:
    with Session.load(folder, "cuda:0", "float16", max_tokens=1024) as session:
        ids = np.array([1, 2, 3], np.int32)
        offsets = np.array([0, 3])
        result: RunResult = session.run([[1, 2], [3]], outputs=["hidden", "embedding"])
        rows: FloatArray = result.embedding
        parts: list[FloatArray] = result.unpack()
        result = session.run((ids, offsets), "pooled", {"pooled": rows}, stream=0)
        result = session.run([ids, [1, 2]], outputs=names, on_device=False)
        result = session.run(packhorse.pack([[1]]), rows=[0], outputs=["predictions"])
        result = session.run(PackedTokens(ids, [0, 3], type_ids=[0, 0, 1]))
        result = session.run((tensor, tensor), on_device=False)
        result = session.run_many([[1, 2], ids], ("logits",))
        with session.run([[1]], on_device=True) as there:
            on_device: DeviceResult = there
            array: DeviceArray = on_device.hidden
        either = session.run((tensor, tensor))
        if isinstance(either, DeviceResult):
            either.check()
        batch = PackedTokens(tensor, tensor)
        of_device: PackedTokens[DeviceArray] = batch
        there = session.run(batch, on_device=True)
        plain: PackedTokens = packhorse.pack([[1, 2]], type_ids=[[0, 0]])
        lengths: npt.NDArray[np.int32] = plain.lengths
    encoder: packhorse.EncoderSession = Session.load(folder, kv_tokens=0, pooling="mean")
    encoder = packhorse.EncoderSession.load(folder, max_tokens=8)
    some: Session = encoder
    options: ServedCall = {"dtype": "int8", "max_length": 64, "memory_limit": "1GB"}
    served = packhorse.serve.ModelSettings("a", "path", options=options)
    print(some.memory_plan, served)
    scores: FloatArray = session.score([1, 2], [[3], [4]], truncation="only_second")
    plan: int = packhorse.plan_memory(folder, "cpu", dtype).total_bytes
    normed = packhorse.ops.gemm(rows, rows, activation="gelu")
    print(parts, array, of_device, lengths, scores, plan, normed)


def generation(folder: Path, messages: list[dict[str, str]]) -> None:
    session: packhorse.GenerationSession = Session.load(folder, kv_tokens=64, max_sequences=4)
    session = packhorse.GenerationSession.load(folder, draft="ngram")
    sampling = packhorse.Sampling(temperature=0.5, max_new_tokens=9, stop_ids=[3])
    request: packhorse.GenerationRequest = session.submit([1, 2], sampling, timeout_s=1)
    tokens: list[int] = list(request.tokens())
    made: packhorse.GeneratedTokens = request.result()
    tokens.append(session.memory_plan.kv_tokens + session.stats["running"])
    with TextModel.load(folder, kv_tokens=1024) as lm:
        text: str = lm.generate("a", max_new_tokens=3, stop=["x"], seed=1)
        several: list[str] = lm.generate("a", n=2)
        listed: list[str] = lm.generate(["a", "b"], regex="[ab]", temperature=0.5)
        nested: list[list[str]] = lm.generate(["a"], n=3)
        one: packhorse.Generation = lm.generate("a", details=True, logprobs=2)
        many: list[packhorse.Generation] = lm.generate(["a"], details=True)
        stream: TextStreaming = lm.generate("a", stream=True)
        pieces: list[str] = list(stream)
        answer: str = lm.chat(messages, schema={"type": "object"}, tools=None)
        answered: packhorse.Generation = lm.chat(messages, details=True)
        pieces += list(lm.chat(messages, stream=True, template_args={"enable_thinking": False}))
    print(tokens, made.finish_reason == "stop", text, several, listed, nested, one.text, many)
    print(pieces, answer, answered.usage.new_tokens, stream.result.text)


async def pieces(lm: TextModel) -> str:
    return "".join([piece async for piece in lm.generate_async("a", top_k=3)])


def texts(
    folder: str,
    some: list[str],
    pairs: list[tuple[str, str]],
    top_k: int,
    strategy: AggregationStrategy,
) -> None:
    with TextModel.load(folder, dtype="int8", threads=2, max_length=64) as model:
        rows: FloatArray = model.embed(some, prompt_name="query", truncate_dim=8)
        signs: npt.NDArray[np.int8] = model.embed("a", dtype="binary")
        levels: npt.NDArray[np.uint8] = model.embed(iter(some), dtype="uint8", ranges=rows)
        token, weight = model.embed_sparse("a")[0][0], model.embed_sparse(some)[0][1][0]
        vectors: list[FloatArray] = model.embed_tokens(some)
        score: float = model.score("who", "the cat")
        scores: FloatArray = model.score("who", some, instruction="x") + model.score_pairs(pairs)
        label: Label = model.classify("a")
        labels: list[Label] = model.classify(pairs, truncation="only_second")
        some_labels: list[Label] = model.classify("a", top_k=None)
        ranked: list[list[Label]] = model.classify(some, top_k=top_k)
        entities: list[Entity] = model.classify_tokens("Paris")
        groups: list[list[EntityGroup]] = model.classify_tokens(some, aggregation_strategy="max")
        either: list[Any] = model.classify_tokens(some, aggregation_strategy=strategy)
        answer: Answer = model.answer("who", "the cat")
        answers: list[list[Answer]] = model.answer(some, "the cat", top_k=3, align_to_words=False)
        word: Word = model.fill_mask("the [MASK]", top_k=2)[0]
        print(rows, signs, levels, token + weight, vectors, score + scores, label["score"] + 1)
        print(labels[0]["label"], some_labels, ranked[0][0]["label"], entities[0]["index"] + 1)
        print(groups[0][0]["entity_group"], answer["start"] + 1, answers, either, word["token_str"])
