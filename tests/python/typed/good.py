"""What a user's file may say: mypy --strict finds nothing here. Never run, only type-checked."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import packhorse
from packhorse import DeviceArray, DeviceResult, PackedTokens, RunResult, Session, TextModel
from packhorse.names import Dtype, OutputName
from packhorse.text import Answer, Label

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
    scores: FloatArray = session.score([1, 2], [[3], [4]], truncation="only_second")
    plan: int = packhorse.plan_memory(folder, "cpu", dtype).total_bytes
    normed = packhorse.ops.gemm(rows, rows, activation="gelu")
    print(parts, array, of_device, lengths, scores, plan, normed)


def texts(folder: str, some: list[str], top_k: int) -> None:
    with TextModel.load(folder, dtype="int8", threads=2, max_length=64) as model:
        rows: FloatArray = model.embed(some, prompt_name="query")
        signs: npt.NDArray[np.int8] = model.embed("a", dtype="binary")
        label: Label = model.classify("a")
        labels: list[Label] = model.classify(some)
        ranked: list[list[Label]] = model.classify(some, top_k=top_k)
        answer: Answer = model.answer("who", "the cat")
        answers: list[Answer] = model.answer("who", "the cat", top_k=3)
        print(rows, signs, label["score"], labels, ranked, answer["start"], answers)
        print(model.fill_mask("the [MASK]")[0][0]["score"] + 1.0)
        print(model.classify_tokens("Paris")[0]["index"] + 1)
        print(model.classify_tokens("Paris", aggregation_strategy="simple")[0]["entity_group"])
