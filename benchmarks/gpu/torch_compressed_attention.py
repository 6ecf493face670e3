"""The block of compressed convolutional attention by transformers' own modules (models/zaya),
compiled by PyTorch, on padded rows [B, S, width] in bfloat16."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from kernel_timing import intervals_ms
from torch import Tensor, nn

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 2048, 8, 2, 128
TOKENS, ROUNDS = 65536, 5


def time_of(work: Callable[[], object]) -> float:
    """Milliseconds: the median of rounds, each between two events."""
    return statistics.median(intervals_ms([work] * (ROUNDS + 2))[2:])


class Block(nn.Module):
    """The norm, attention (scaled_dot_product_attention) and the residual, with random weights on
    the GPU."""

    def __init__(self) -> None:
        # Here, because what is measured of Packhorse alone needs no transformers.
        from transformers import ZayaConfig
        from transformers.models.zaya import modeling_zaya as zaya

        super().__init__()
        config = ZayaConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM, num_hidden_layers=1, max_position_embeddings=TOKENS,
        )  # fmt: skip
        config._attn_implementation = "sdpa"
        self.layer_type = config.layer_types[0]
        self.norm = zaya.ZayaRMSNorm(WIDTH)
        self.attention = zaya.ZayaAttention(config, 0)
        self.to(device="cuda", dtype=torch.bfloat16).eval()
        self.rotation = zaya.ZayaRotaryEmbedding(config).cuda()
        self.compiled = torch.compile(self.forward, dynamic=False)

    def forward(
        self, hidden: Tensor, masks: dict[str, Tensor] | None, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        out: Tensor = self.attention(
            self.norm(hidden), attention_mask=masks, position_embeddings=angles
        )[0]
        return hidden + out

    def milliseconds(self, lengths: list[int]) -> float:
        """The time of a batch. Its masks are those of transformers' models: of order and padding,
        and none for one text without padding, which is_causal stands for."""
        longest = max(lengths)
        places = torch.arange(longest, device="cuda")
        masks = None
        if len(lengths) > 1:
            kept = places < torch.tensor(lengths, device="cuda")[:, None]
            causal = torch.ones(longest, longest, dtype=torch.bool, device="cuda").tril()
            masks = {"causal": causal & kept[:, None, None], "conv": kept}
        hidden = torch.randn(len(lengths), longest, WIDTH, device="cuda").bfloat16()
        with torch.no_grad():
            angles = self.rotation(hidden, places[None], self.layer_type)
            return time_of(lambda: self.compiled(hidden, masks, angles))
