"""Tests of packhorse.ray, which need the extra `ray`; `nox -s test-ray` runs them in an environment
of their own. Elsewhere nothing is collected.

The cluster is a real one on this machine: its control service, two nodes, workers as processes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests" / "python" / "support"))

CAN_RUN = all(importlib.util.find_spec(name) for name in ("ray", "pyarrow", "tokenizers"))
collect_ignore_glob = [] if CAN_RUN else ["test_ray_*.py"]

# Before Ray is imported: it asks nobody, tells nobody, and makes no token in the home folder.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"

if CAN_RUN:
    from ray_support import Cluster, start_cluster


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its tokenizer; not to be changed."""
    from checkpoints import GOLDEN
    from tiny_tokenizer import with_tokenizer

    folder = tmp_path_factory.mktemp("model") / "bert"
    with_tokenizer(GOLDEN / "bert-gelu", folder, "bert", {})
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU each, and this process connected to them."""
    yield from start_cluster()
