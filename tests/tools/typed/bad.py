"""Mistakes that mypy finds in a user's file, each with its code. Never run, only type-checked."""
# ruff: noqa: B018

from pathlib import Path

import numpy as np
import numpy.typing as npt
import packhorse
from packhorse import Session, TextModel
from packhorse.names import Dtype


def sessions(folder: Path) -> None:
    session = Session.load(folder)
    Session.load(folder, dtype="float4")  # error: call-overload
    Session.load(folder, max_token=8)  # error: call-overload
    Session.load(folder, memory_limit=1.5)  # error: call-overload
    packhorse.Sesion  # error: attr-defined
    packhorse.ops.gem  # error: attr-defined
    dtype: Dtype = "half"  # error: assignment
    session.run([[1]], outputs=["embeddings"])  # error: list-item
    session.run([[1]], output=["embedding"])  # error: call-overload
    session.run(["text"])  # error: list-item
    session.run([[1]]).embeddings  # error: attr-defined
    session.run([[1]]).check()  # error: attr-defined
    session.run([[1]], on_device=True).unpack()  # error: attr-defined
    session.run_many([[1]], outputs=["hiden"])  # error: list-item
    session.score([1], [[2]], truncation="longest")  # error: arg-type
    packhorse.pack([[1]]).lenghts  # error: attr-defined
    rows: list[int] = session.run([[1]]).hidden  # error: assignment
    print(dtype, rows)


def generation(folder: Path) -> None:
    session = Session.load(folder, kv_tokens=8)
    Session.load(folder, kv_tokens="all")  # error: call-overload
    session.submit([1], packhorse.Sampling(temprature=1))  # error: call-arg
    Session.load(folder, kv_tokens=64).run([[1]])  # error: attr-defined
    Session.load(folder, kv_tokens=0).generate([[1]])  # error: attr-defined
    TextModel.load(folder).session.generate([[1]])  # error: attr-defined
    lm = TextModel.load(folder)
    lm.generate("a", max_tokens=3)  # error: call-overload
    number: int = lm.generate("a")  # error: assignment
    lm.generate("a", details=True).texts  # error: attr-defined
    lm.chat("hello")  # error: arg-type
    lm.generate(["a"], stream=True)  # error: call-overload
    print(number)


def texts(folder: Path) -> None:
    model = TextModel.load(folder, thread=2)  # error: call-arg
    TextModel.load(folder, dtype="float4")  # error: arg-type
    TextModel.load(folder, pooling="median")  # error: arg-type
    model.embedd(["a"])  # error: attr-defined
    model.embed(["a"], dtype="int4")  # error: call-overload
    model.embed(["a"], promt="x")  # error: call-overload
    model.embed([1, 2])  # error: list-item
    signs: npt.NDArray[np.uint8] = model.embed("a")  # error: assignment
    model.classify("a")["lable"]  # error: typeddict-item
    model.classify(["a"])["label"]  # error: call-overload
    model.classify("a", top_k=2)["label"]  # error: call-overload
    model.classify("a", truncation="longest")  # error: call-overload
    model.answer("who", "a", doc_stride=2)  # error: call-overload
    model.answer("who", "a")["text"]  # error: typeddict-item
    model.fill_mask("a")[0]["scores"]  # error: typeddict-item
    model.classify_tokens("a", aggregation_strategy="complex")  # error: call-overload
    model.classify_tokens("a")[0]["entity_group"]  # error: typeddict-item
    model.score("who", 5)  # error: call-overload
    model.score_pairs([("a", "b", "c")])  # error: list-item
    model.embed_sparse("a", max_lenght=2)  # error: call-overload
    print(signs)
