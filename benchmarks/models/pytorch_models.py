"""PyTorch models with seeded weights: networks written by hand, and architectures of the package transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.around = nn.Conv2d(channels, width, 1, stride) if stride > 1 or channels != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, C, H, W]."""
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(inner + self.around(x))


class Residuals(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, H, W] to scores [N, 10]."""
        return self.head(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class UNet(nn.Module):
    """A small U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, H, W] to maps [N, 4, H, W]."""
        down = functional.silu(self.down(x))
        up = self.up(functional.silu(self.deep(down)))
        wide = functional.interpolate(up, size=down.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([down, wide], 1))


def convolved(
    channels: int, width: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Module:
    """Return a padded convolution, batch normalization and ReLU."""
    padding = dilation * (kernel - 1) // 2
    convolution = nn.Conv2d(channels, width, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    """A bottleneck of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(convolved(channels, width, 1), convolved(width, width, 3, stride))
        self.widen, self.norm = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        around = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.around = around if channels != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, C, H, W]."""
        return torch.relu(self.norm(self.widen(self.inner(x))) + self.around(x))


def resnet50() -> nn.Module:
    """Return ResNet-50 as published, strided in 3 x 3 convolutions: pictures [N, 3, H, W] to scores [N, 1000]."""
    stem = nn.Sequential(convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
    blocks, channels = [], 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for place in range(count):
            blocks.append(Bottleneck(channels, width, 2 if stage and not place else 1))
            channels = 4 * width
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Inverted(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.widen, self.each = convolved(channels, wide, 1), convolved(wide, wide, 5, stride, groups=wide)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, channels, 1),
            nn.ReLU(),
            nn.Conv2d(channels, wide, 1),
            nn.Hardsigmoid(),
        )
        self.narrow = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, C, H, W]."""
        y = self.each(self.widen(x))
        y = self.narrow(y * self.weigh(y))
        return x + y if x.shape == y.shape else y


def mobilenet() -> nn.Module:
    """Return a small MobileNetV3: pictures [N, 3, H, W] to scores [N, 10]."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(inplace=True))
    blocks = (Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 10))


class DenseBlock(nn.Module):
    """Convolutions that read the outputs of all before them."""

    def __init__(self, channels: int, growth: int, count: int) -> None:
        super().__init__()
        widths = [channels + growth * place for place in range(count)]
        self.steps = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, 1, 1, bias=False))
            for width in widths
        )

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, C, H, W] to more channels."""
        parts = [x]
        for step in self.steps:
            parts.append(step(torch.cat(parts, 1)))
        return torch.cat(parts, 1)


def densenet() -> nn.Module:
    """Return a small DenseNet: pictures [N, 3, H, W] to scores [N, 10]."""
    between = (nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 24, 1, bias=False), nn.AvgPool2d(2))
    return nn.Sequential(
        *(convolved(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), DenseBlock(16, 8, 4), *between, DenseBlock(24, 8, 4)),
        *(nn.BatchNorm2d(56), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(56, 10)),
    )


class DeepLab(nn.Module):
    """Parallel dilated convolutions and a mean of the picture, as in DeepLabV3."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(convolved(3, 16, 3, 2), Residual(16, 32, 2), convolved(32, 32, dilation=2))
        self.rates = nn.ModuleList([convolved(32, 16, 1), *(convolved(32, 16, dilation=rate) for rate in (3, 6))])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 16, 1), nn.ReLU())
        self.head = nn.Sequential(convolved(64, 16, 1), nn.Conv2d(16, 5, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Pictures [N, 3, H, W] to maps [N, 5, H, W]."""
        y = self.body(x)
        resized = functional.interpolate(self.whole(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        scores = self.head(torch.cat([*(rate(y) for rate in self.rates), resized], 1))
        return {"out": functional.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class FullyConvolutional(nn.Module):
    """Scores at two sizes, added and enlarged by transposed convolutions, as in FCN."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = convolved(3, 16, 3, 2), convolved(16, 32, 3, 2)
        self.of_fine, self.of_coarse = nn.Conv2d(16, 5, 1), nn.Conv2d(32, 5, 1)
        self.twice, self.back = nn.ConvTranspose2d(5, 5, 4, 2, 1), nn.ConvTranspose2d(5, 5, 4, 2, 1, groups=5)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, 3, H, W] to maps [N, 5, H, W]."""
        fine = self.fine(x)
        return self.back(self.twice(self.of_coarse(self.coarse(fine))) + self.of_fine(fine))


class Detector(nn.Module):
    """Boxes from maps of two sizes, with non-maximum suppression."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(convolved(3, 16, 3, 2), convolved(16, 24, 3, 2))
        self.coarse = convolved(24, 24, 3, 2)
        self.heads = nn.ModuleList([nn.Conv2d(24, 4 + 3, 3, 1, 1), nn.Conv2d(24, 4 + 3, 3, 1, 1)])

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Pictures [N, 3, H, W] to boxes [K, 4] (left, top, right, bottom), scores [K] and classes [K] of each."""
        fine = self.fine(x)
        levels = [
            _boxes(head(level), stride)
            for head, level, stride in zip(self.heads, (fine, self.coarse(fine)), (4, 8), strict=True)
        ]
        boxes, scores = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
        best, classes = scores.max(-1)
        chosen, places = best.topk(24, dim=1)
        boxes = boxes.gather(1, places[..., None].expand(-1, -1, 4))
        keep = _kept(boxes, classes.gather(1, places)) & (chosen > 0.5)
        kinds = classes.gather(1, places)
        return [(boxes[n][keep[n]], chosen[n][keep[n]], kinds[n][keep[n]]) for n in range(len(x))]


def _boxes(features: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return a head's output [N, 4 + classes, H, W] as boxes [N, H * W, 4] in pixels and scores [N, H * W, classes]."""
    rows, columns = torch.arange(features.shape[2]), torch.arange(features.shape[3])
    centers = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2) * stride + stride / 2
    flat = features.flatten(2).transpose(1, 2)
    halves = flat[..., 2:4].clamp(max=3).exp() * 2 * stride
    middles = centers + flat[..., :2].tanh() * stride
    return torch.cat([middles - halves, middles + halves], -1), flat[..., 4:].sigmoid()


def _kept(boxes: Tensor, classes: Tensor, most: float = 0.5) -> Tensor:
    """Return a mask of the boxes [N, K, 4], the best first, after non-maximum suppression by class."""
    top_left, bottom_right = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2]), boxes[:, :, None, 2:]
    shared = (torch.minimum(bottom_right, boxes[:, None, :, 2:]) - top_left).clamp(min=0).prod(-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    overlaps = shared / (areas[:, :, None] + areas[:, None] - shared) > most
    rivals = (overlaps & (classes[:, :, None] == classes[:, None])).triu(1)
    keep = torch.ones_like(classes, dtype=torch.bool)
    for better in range(boxes.shape[1]):
        keep = keep & ~(rivals[:, better] & keep[:, better, None])
    return keep


class Recurrent(nn.Module):
    """An LSTM or a GRU over embeddings."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.core, self.head = (
            nn.Embedding(100, 32),
            kind(32, 48, 1, batch_first=True),
            nn.Linear(48, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [N, L] to scores [N, 5]."""
        return self.head(self.core(self.embedding(x))[0][:, -1])


class GraphNet(nn.Module):
    """A graph network: messages along edges, added per node."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(16, 32), nn.Linear(48, 16)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Nodes [N, 16] and edges [2, E] to nodes [N, 16]."""
        sent = torch.relu(self.message(x))[edges[0]]
        gathered = torch.zeros(x.shape[0], 32).index_add(0, edges[1], sent)
        return self.update(torch.cat([x, gathered], 1))


class Mixer(nn.Module):
    """One block of an MLP mixer over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 32, 8, 8), nn.LayerNorm(32)
        self.across, self.along = nn.Linear(16, 16), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, 32, 32] to features [N, 32]."""
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + self.across(self.norm(y).transpose(1, 2)).transpose(1, 2)
        return (y + self.along(self.norm(y))).mean(1)


class Attending(nn.Module):
    """PyTorch's own encoder layer after a group normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.GroupNorm(4, 32), nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [N, L, 32] to rows [N, L, 32]."""
        return self.layer(self.norm(x.transpose(1, 2)).transpose(1, 2))


Made = tuple[nn.Module, dict[str, Any]]
"""A module, and its inputs by name."""

_TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 120,
}  # fmt: skip
_GQA = {**_TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
_PICTURE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_SEQUENCE = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 120,
}  # fmt: skip


def tokens(rows: int = 2, length: int = 12) -> torch.Tensor:
    """Return tokens [rows, length], integers from 3 to 99."""
    return torch.randint(3, 100, (rows, length), generator=torch.Generator().manual_seed(0))


def pictures(size: int = 32, channels: int = 3) -> torch.Tensor:
    """Return pictures [2, channels, size, size], float32."""
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


_TRANSFORMERS: Mapping[str, tuple[str, Mapping[str, Any], Callable[[], dict[str, Any]]]] = {
    "BERT": ("Bert", _TEXT, lambda: {"input_ids": tokens()}),
    "RoBERTa": ("Roberta", {**_TEXT, "max_position_embeddings": 64}, lambda: {"input_ids": tokens()}),
    "ELECTRA": ("Electra", {**_TEXT, "embedding_size": 32}, lambda: {"input_ids": tokens()}),
    "ALBERT": ("Albert", {**_TEXT, "embedding_size": 32}, lambda: {"input_ids": tokens()}),
    "DistilBERT": ("DistilBert", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 120},
                   lambda: {"input_ids": tokens()}),
    "DeBERTa": ("DebertaV2", {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
                lambda: {"input_ids": tokens()}),
    "MPNet": ("MPNet", {**_TEXT, "max_position_embeddings": 64}, lambda: {"input_ids": tokens()}),
    "GPT-2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 120, "n_positions": 64},
              lambda: {"input_ids": tokens()}),
    "GPT-NeoX": ("GPTNeoX", {**_TEXT, "max_position_embeddings": 64}, lambda: {"input_ids": tokens()}),
    "OPT": ("OPT", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
                    "vocab_size": 120, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
            lambda: {"input_ids": tokens()}),
    "BLOOM": ("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 120},
              lambda: {"input_ids": tokens()}),
    "Llama": ("Llama", _GQA, lambda: {"input_ids": tokens()}),
    "Mistral": ("Mistral", _GQA, lambda: {"input_ids": tokens()}),
    "Qwen2": ("Qwen2", _GQA, lambda: {"input_ids": tokens()}),
    "Gemma": ("Gemma", {**_GQA, "head_dim": 16}, lambda: {"input_ids": tokens()}),
    "Phi": ("Phi", {**_TEXT, "max_position_embeddings": 64}, lambda: {"input_ids": tokens()}),
    "T5": ("T5", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 120},
           lambda: {"input_ids": tokens(), "decoder_input_ids": tokens(length=7)}),
    "BART": ("Bart", {**_SEQUENCE, "max_position_embeddings": 64},
             lambda: {"input_ids": tokens(), "decoder_input_ids": tokens(length=7)}),
    "Whisper": ("Whisper", {**_SEQUENCE, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20,
                            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
                lambda: {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": tokens(length=7)}),
    "Wav2Vec2": ("Wav2Vec2", {**_TEXT, "conv_dim": [32, 32], "conv_stride": [5, 2], "conv_kernel": [10, 3],
                              "num_feat_extract_layers": 2, "num_conv_pos_embedding_groups": 4,
                              "num_conv_pos_embeddings": 16},
                 lambda: {"input_values": torch.randn(2, 400)}),
    "ViT": ("ViT", _PICTURE, lambda: {"pixel_values": pictures()}),
    "DeiT": ("DeiT", _PICTURE, lambda: {"pixel_values": pictures()}),
    "DINOv2": ("Dinov2", {**_PICTURE, "mlp_ratio": 2}, lambda: {"pixel_values": pictures()}),
    "BEiT": ("Beit", _PICTURE, lambda: {"pixel_values": pictures()}),
    "CLIP": ("CLIP", {"text_config": {**_TEXT, "eos_token_id": 99}, "vision_config": _PICTURE, "projection_dim": 32},
             lambda: {"input_ids": tokens(), "pixel_values": pictures()}),
    "Swin": ("Swin", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
                      "window_size": 4}, lambda: {"pixel_values": pictures()}),
    "ConvNeXt": ("ConvNext", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
                 lambda: {"pixel_values": pictures()}),
    "RegNet": ("RegNet", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
               lambda: {"pixel_values": pictures()}),
    "MobileNetV2": ("MobileNetV2", {"image_size": 32, "depth_multiplier": 0.35}, lambda: {"pixel_values": pictures()}),
    "SegFormer": ("Segformer", {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "mlp_ratios": [2, 2],
                                "hidden_sizes": [16, 32], "patch_sizes": [3, 3], "strides": [2, 2],
                                "num_attention_heads": [1, 2]}, lambda: {"pixel_values": pictures()}),
    "PoolFormer": ("PoolFormer", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2,
                                  "patch_sizes": [3, 3], "strides": [2, 2], "padding": [1, 1]},
                   lambda: {"pixel_values": pictures()}),
}  # fmt: skip
"""Name -> the architecture's name in transformers, its configuration, and the maker of its inputs."""


_EDGES = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(0))
_BY_HAND: Mapping[str, Callable[[], Made]] = {
    "ResNet": lambda: (Residuals(), {"x": pictures(64)}),
    "ResNet-50": lambda: (resnet50(), {"input": pictures(64)}),
    "MobileNetV3": lambda: (mobilenet(), {"input": pictures()}),
    "DenseNet": lambda: (densenet(), {"input": pictures(64)}),
    "FCN": lambda: (FullyConvolutional(), {"x": pictures()}),
    "DeepLab": lambda: (DeepLab(), {"x": pictures()}),
    "detector": lambda: (Detector(), {"x": pictures()}),
    "U-Net": lambda: (UNet(), {"x": pictures()}),
    "LSTM": lambda: (Recurrent(nn.LSTM), {"x": tokens()}),
    "GRU": lambda: (Recurrent(nn.GRU), {"x": tokens()}),
    "graph net": lambda: (GraphNet(), {"x": torch.randn(20, 16), "edges": _EDGES}),
    "MLP mixer": lambda: (Mixer(), {"x": pictures()}),
    "perceptron": lambda: (nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), {"input": torch.randn(4, 8)}),
    "encoder layer": lambda: (Attending(), {"x": torch.randn(2, 9, 32)}),
    "autoencoder": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()),
        {"input": pictures()},
    ),
}


def models() -> Mapping[str, Callable[[], Made]]:
    """Return the maker of each model in evaluation mode, by name; weights are the same each time."""
    makers = {**_BY_HAND, **{name: partial(_of_transformers, *row) for name, row in _TRANSFORMERS.items()}}
    return {name: partial(_seeded, make) for name, make in makers.items()}


def _seeded(make: Callable[[], Made]) -> Made:
    torch.manual_seed(0)
    module, inputs = make()
    _learn_statistics(module, inputs)
    return module.eval(), inputs


def _learn_statistics(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Run batch normalizations on 16 pictures: without statistics, many in a row would shrink values to nothing."""
    norms = [norm for norm in module.modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            module.train()(**{name: torch.randn(16, *value.shape[1:]) for name, value in inputs.items()})
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _of_transformers(name: str, configuration: Mapping[str, Any], inputs: Callable[[], dict[str, Any]]) -> Made:
    import transformers  # takes seconds, and the others do without it

    config = getattr(transformers, f"{name}Config")(**configuration)
    return getattr(transformers, f"{name}Model")(config), inputs()


_WORDS, _POSITIONS, _TOKENS = 500, 64, 16
_PICTURE_SIZE, _PATCH_SIZE = 32, 8


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
        result: torch.Tensor = self.narrow(functional.gelu(self.wide(x)))
        return result


class _VisionTransformer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        patches = (_PICTURE_SIZE // _PATCH_SIZE) ** 2
        self.patches = nn.Conv2d(3, width, _PATCH_SIZE, _PATCH_SIZE)
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
    tokens = torch.ones(2, _TOKENS, dtype=torch.int64)
    if kind == "vit":
        module, inputs, names = (
            _VisionTransformer(width, heads),
            (torch.randn(1, 3, _PICTURE_SIZE, _PICTURE_SIZE),),
            ["x"],
        )
    else:
        module, inputs, names = _Encoder(width, heads), (tokens, tokens, tokens), ["ids", "mask", "kinds"]
    opset = 18 if dynamo else 14
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), inputs, str(path), input_names=names, dynamo=dynamo, opset_version=opset, verbose=False
        )
    return onnx.load(path)
