"""The engines of cpu_decode.py. Each module is imported by the process that runs it alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = (1000, 40000)  # random ids, none of them special
LONGEST = 1024  # tokens of a text
clock = time.perf_counter  # in seconds; cpu_decode.py --clock replaces it

# run(batch, prompt tokens, new tokens): seconds until all texts have their first new token, and
# until all have their last.
Run = Callable[[int, int, int], tuple[float, float]]


@dataclass(frozen=True)
class Engine:
    dtype: str  # dtype of Packhorse, or its quantised file, that this engine is compared with
    load: Callable[[str, Path, int], Run]


def prompts(batch: int, length: int) -> list[list[int]]:
    rng = np.random.default_rng()
    return [[int(i) for i in rng.integers(*VOCABULARY, length)] for _ in range(batch)]


def load_packhorse(
    dtype: str, model: str, folder: Path, threads: int, file: str | None = None
) -> Run:
    import packhorse

    session = packhorse.Session.load(
        model if file is None else folder / file,
        dtype=dtype,
        kv_tokens=8 * LONGEST,
        threads=threads,
        prefix_cache=False,
    )

    def run(batch: int, length: int, new: int) -> tuple[float, float]:
        sampling = packhorse.Sampling(temperature=0, max_new_tokens=new, ignore_eos=True)
        texts = prompts(batch, length)
        start = clock()
        streams = [session.submit(text, sampling).tokens() for text in texts]
        for stream in streams:
            next(stream)
        first = clock() - start
        for stream in streams:
            for _ in stream:
                pass
        return first, clock() - start

    return run


def load_llama_cpp(file: str | None, path: str, folder: Path, threads: int) -> Run:
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        (path if file is None else str(folder / file)).encode(),
        llama_cpp.llama_model_default_params(),
    )
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = 8 * LONGEST
    parameters.n_batch = parameters.n_ubatch = LONGEST
    parameters.n_seq_max = 8
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    tokens = llama_cpp.llama_batch_init(LONGEST, 0, 1)

    def step(ids: list[list[int]], position: int) -> list[list[int]]:
        """One token after each text's ids, which begin at the position."""
        tokens.n_tokens = 0
        outputs = []
        for sequence, text in enumerate(ids):
            for i, token in enumerate(text):
                at = tokens.n_tokens
                tokens.token[at] = token
                tokens.pos[at] = position + i
                tokens.n_seq_id[at] = 1
                tokens.seq_id[at][0] = sequence
                tokens.logits[at] = i + 1 == len(text)
                tokens.n_tokens += 1
            outputs.append(tokens.n_tokens - 1)
        if llama_cpp.llama_decode(context, tokens) != 0:
            raise RuntimeError("llama_decode failed")
        logits = [llama_cpp.llama_get_logits_ith(context, i) for i in outputs]
        return [[int(np.ctypeslib.as_array(one, (size,)).argmax())] for one in logits]

    def run(batch: int, length: int, new: int) -> tuple[float, float]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        texts = prompts(batch, length)
        start = clock()
        last = step(texts, 0)
        first = clock() - start
        for i in range(new - 1):
            last = step(last, length + i)
        return first, clock() - start

    return run


def load_ctranslate2(file: str, _: str, folder: Path, threads: int) -> Run:
    import ctranslate2
    import transformers

    generator = ctranslate2.Generator(
        str(folder / file), compute_type=file.split("-")[1], intra_threads=threads
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")

    def run(batch: int, length: int, new: int) -> tuple[float, float]:
        texts = [tokenizer.convert_ids_to_tokens(text) for text in prompts(batch, length)]
        times: dict[int, float] = {}

        def note(result: Any) -> bool:
            times.setdefault(result.step, 0)
            times[result.step] = clock() - start
            return False

        start = clock()
        generator.generate_batch(
            texts,
            max_length=new,
            min_length=new,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=note,
        )
        return times[0], times[new - 1]

    return run


def load_transformers(dtype: str, _: str, folder: Path, threads: int) -> Run:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "hf", dtype=getattr(torch, dtype)
    ).eval()

    @torch.inference_mode()
    def run(batch: int, length: int, new: int) -> tuple[float, float]:
        ids = torch.tensor(prompts(batch, length))
        first = 0.0
        cache = None
        start = clock()
        for i in range(new):
            made = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = made.past_key_values
            ids = made.logits[:, -1:].argmax(-1)
            if i == 0:
                first = clock() - start
        return first, clock() - start

    return run


def load_openvino(file: str, _: str, folder: Path, threads: int) -> Run:
    import openvino as ov
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(
        str(folder / file), "CPU", INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY"
    )

    def run(batch: int, length: int, new: int) -> tuple[float, float]:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=new, min_new_tokens=new, ignore_eos=True
        )
        ids = ov.Tensor(np.array(prompts(batch, length), np.int64))
        inputs = openvino_genai.TokenizedInputs(ids, ov.Tensor(np.ones(ids.shape, np.int64)))
        start = clock()
        made = pipeline.generate(inputs, config)
        end = clock() - start
        # It has times of tokens for the first text of a batch alone, in milliseconds.
        return made.perf_metrics.get_ttft().mean / 1e3, end

    return run


def load_onnxruntime(file: str, _: str, folder: Path, threads: int) -> Run:
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(folder / file))
    session = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model = onnxruntime_genai.Model(config)

    def run(batch: int, length: int, new: int) -> tuple[float, float]:
        ids = np.array(prompts(batch, length), np.int32)
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(
            do_sample=False, batch_size=batch, min_length=length + new, max_length=length + new
        )
        start = clock()
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(ids)  # runs the model
        generator.generate_next_token()
        first = clock() - start
        for _ in range(new - 1):
            generator.generate_next_token()
        return first, clock() - start

    return run


ENGINES = {
    "Packhorse float32": Engine("float32", partial(load_packhorse, "float32")),
    "Packhorse bfloat16": Engine("bfloat16", partial(load_packhorse, "bfloat16")),
    "Packhorse float16": Engine("float16", partial(load_packhorse, "float16")),
    "Packhorse int8": Engine("int8", partial(load_packhorse, "int8")),
    "Packhorse Q8_0": Engine("Q8_0", partial(load_packhorse, "stored", file="q8_0.gguf")),
    "Packhorse Q4_1": Engine("Q4_1", partial(load_packhorse, "stored")),  # the file itself
    "llama.cpp F32": Engine("float32", partial(load_llama_cpp, "f32.gguf")),
    "llama.cpp BF16": Engine("bfloat16", partial(load_llama_cpp, "bf16.gguf")),
    "llama.cpp F16": Engine("float16", partial(load_llama_cpp, "f16.gguf")),
    "llama.cpp Q8_0": Engine("Q8_0", partial(load_llama_cpp, "q8_0.gguf")),
    "llama.cpp Q4_1": Engine("Q4_1", partial(load_llama_cpp, None)),
    "CTranslate2 float32": Engine("float32", partial(load_ctranslate2, "ct2-float32")),
    "CTranslate2 int8": Engine("int8", partial(load_ctranslate2, "ct2-int8")),
    "transformers float32": Engine("float32", partial(load_transformers, "float32")),
    "transformers bfloat16": Engine("bfloat16", partial(load_transformers, "bfloat16")),
    "OpenVINO float32": Engine("float32", partial(load_openvino, "f32.gguf")),
    "OpenVINO int8": Engine("Q8_0", partial(load_openvino, "q8_0.gguf")),
    "onnxruntime-genai float32": Engine("float32", partial(load_onnxruntime, "genai-fp32")),
    "onnxruntime-genai int8": Engine("Q8_0", partial(load_onnxruntime, "genai-int8")),
    "onnxruntime-genai int4": Engine("Q4_1", partial(load_onnxruntime, "genai-int4")),
}


def load_engine(name: str, model: str, folder: str, threads: int) -> Run:
    return ENGINES[name].load(model, Path(folder), threads)
