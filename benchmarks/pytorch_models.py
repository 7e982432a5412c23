"""Models for `pytorch.py`: small networks written by hand, and architectures of transformers with small weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]
"""A module, and what it is called with."""

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
    """Tokens [rows, length], integers from 3 to 99."""
    return torch.randint(3, 100, (rows, length), generator=torch.Generator().manual_seed(0))


def pictures(size: int = 32, channels: int = 3) -> torch.Tensor:
    """Pictures [2, channels, size, size], float32."""
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
"""Name -> the architecture as transformers calls it, its configuration, and what makes its inputs."""


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(before, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.around = nn.Conv2d(before, width, 1, stride) if stride > 1 or before != width else nn.Identity()

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
        return self.head(nn.functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, H, W] to maps [N, 4, H, W]."""
        down = nn.functional.silu(self.down(x))
        up = self.up(nn.functional.silu(self.deep(down)))
        wide = nn.functional.interpolate(up, size=down.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([down, wide], 1))


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
    """Messages along edges, gathered and added up."""

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
    """PyTorch's own encoder layer behind group normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.GroupNorm(4, 32), nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [N, L, 32], and as many back."""
        return self.layer(self.norm(x.transpose(1, 2)).transpose(1, 2))


_EDGES = torch.randint(0, 20, (2, 60), generator=torch.Generator().manual_seed(0))
_BY_HAND: Mapping[str, Callable[[], Made]] = {
    "ResNet": lambda: (Residuals(), {"x": pictures(64)}),
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
    """Return what makes each model in evaluation mode, by name; weights are the same each time."""
    makers = {**_BY_HAND, **{name: partial(_of_transformers, *row) for name, row in _TRANSFORMERS.items()}}
    return {name: partial(_seeded, make) for name, make in makers.items()}


def _seeded(make: Callable[[], Made]) -> Made:
    torch.manual_seed(0)
    module, inputs = make()
    return module.eval(), inputs


def _of_transformers(name: str, configuration: Mapping[str, Any], inputs: Callable[[], dict[str, Any]]) -> Made:
    made = getattr(transformers, f"{name}Config")(**configuration)
    return getattr(transformers, f"{name}Model")(made), inputs()
