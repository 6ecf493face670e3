"""Makes legacy.bin and legacy.npz: a checkpoint in the layout from before PyTorch 1.6.

    pip install torch
    python tests/golden/make_torch_golden.py

legacy.bin   tensors of every dtype, views and shared storages, as `torch.save` wrote them
legacy.npz   their values (bfloat16 as float32), and the version of PyTorch
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


def main() -> None:
    torch.manual_seed(0)
    whole = torch.randn(4, 6)
    tensors = OrderedDict(
        whole=whole,
        transposed=whole.T,
        part=whole[1:3, 2:],
        scalar=torch.tensor(3.5),
        empty=torch.empty(0, 3),
        parameter=torch.nn.Parameter(torch.randn(5)),
        half=torch.randn(3).half(),
        brain=torch.randn(3).bfloat16(),
        double=torch.randn(2).double(),
        long=torch.arange(3),
        bytes=torch.arange(3, dtype=torch.uint8),
        flags=torch.tensor([True, False]),
    )
    module = torch.nn.Linear(2, 3)
    tensors.update({f"linear.{name}": value for name, value in module.state_dict().items()})
    torch.save(tensors, HERE / "legacy.bin", _use_new_zipfile_serialization=False)
    np.savez_compressed(
        HERE / "legacy.npz",
        torch=torch.__version__,
        **{
            name: (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
            for name, value in tensors.items()
        },
    )


if __name__ == "__main__":
    main()
