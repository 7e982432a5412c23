"""Transformers in plain PyTorch, in the forms that ONNX Runtime's optimizer for transformers finds its fused ops in."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import torch
from torch import nn

_WORDS, _POSITIONS, _LENGTH = 500, 64, 16
_PICTURE, _PATCH = 32, 8


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.depth = heads, width // heads

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        rows, length, width = x.shape
        query, key, value = (
            layer(x).view(rows, length, self.heads, self.depth).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / self.depth**0.5
        scores = scores if mask is None else scores + mask
        mixed: torch.Tensor = (scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, width)
        result: torch.Tensor = self.out(mixed)
        return result


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, *, normalized_first: bool) -> None:
        super().__init__()
        self.attention, self.first = _Attention(width, heads), nn.LayerNorm(width)
        self.wide, self.narrow, self.second = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.LayerNorm(width),
        )
        self.normalized_first = normalized_first

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.normalized_first:
            x = x + self.attention(self.first(x), mask)
            return x + self._fed(self.second(x))
        x = self.first(x + self.attention(x, mask))
        result: torch.Tensor = self.second(x + self._fed(x))
        return result

    def _fed(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.narrow(nn.functional.gelu(self.wide(x)))
        return result


class _VisionTransformer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        patches = (_PICTURE // _PATCH) ** 2
        self.patches = nn.Conv2d(3, width, _PATCH, _PATCH)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, patches + 1, width))
        self.blocks = nn.ModuleList(_Block(width, heads, normalized_first=True) for _ in range(2))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(self.last(x)[:, 0])
        return result


class _Encoder(nn.Module):
    places: torch.Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions, self.kinds = (nn.Embedding(count, width) for count in (_WORDS, _POSITIONS, 2))
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(_Block(width, heads, normalized_first=False) for _ in range(2))
        self.register_buffer("places", torch.arange(_POSITIONS)[None])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.norm(
            self.words(ids) + self.positions(self.places[:, : ids.shape[1]]) + self.kinds(kinds)
        )
        hidden = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        for block in self.blocks:
            x = block(x, hidden)
        return x


def exported(kind: str, path: Path, width: int = 64, heads: int = 4, *, dynamo: bool = False) -> onnx.ModelProto:
    """Return a model as PyTorch exports it: `vit` or `bert`.

    Args:
        kind: of the model.
        path: of the file that the exporter writes.
        width: of the model.
        heads: of its attention.
        dynamo: by the newer of PyTorch's exporters; the optimizer was written for what the older one writes.
    """
    torch.manual_seed(0)
    tokens = torch.ones(2, _LENGTH, dtype=torch.int64)
    if kind == "vit":
        module, inputs, names = _VisionTransformer(width, heads), (torch.randn(1, 3, _PICTURE, _PICTURE),), ["x"]
    else:
        module, inputs, names = _Encoder(width, heads), (tokens, tokens, tokens), ["ids", "mask", "kinds"]
    opset = 18 if dynamo else 14
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), inputs, str(path), input_names=names, dynamo=dynamo, opset_version=opset, verbose=False
        )
    return onnx.load(path)
