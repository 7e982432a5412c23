"""Models for `pytorch.py`: small networks written by hand, and architectures of transformers with small weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.pytorch_pictures import (
    DeepLab,
    Detector,
    FullyConvolutional,
    Residuals,
    UNet,
    densenet,
    mobilenet,
    resnet50,
)
from benchmarks.pytorch_sequences import Attending, GraphNet, Mixer, Recurrent

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
    """Return what makes each model in evaluation mode, by name; weights are the same each time."""
    makers = {**_BY_HAND, **{name: partial(_of_transformers, *row) for name, row in _TRANSFORMERS.items()}}
    return {name: partial(_seeded, make) for name, make in makers.items()}


def _seeded(make: Callable[[], Made]) -> Made:
    torch.manual_seed(0)
    module, inputs = make()
    _learn_statistics(module, inputs)
    return module.eval(), inputs


def _learn_statistics(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Let batch normalizations see 16 pictures: a long row of new ones shrinks what goes through to nothing."""
    norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    momenta = [each.momentum for each in norms]
    for each in norms:
        each.momentum = 1.0
    if norms:
        with torch.no_grad():
            module.train()(**{name: torch.randn(16, *value.shape[1:]) for name, value in inputs.items()})
    for each, momentum in zip(norms, momenta, strict=True):
        each.momentum = momentum


def _of_transformers(name: str, configuration: Mapping[str, Any], inputs: Callable[[], dict[str, Any]]) -> Made:
    import transformers  # takes seconds, and the others do without it

    made = getattr(transformers, f"{name}Config")(**configuration)
    return getattr(transformers, f"{name}Model")(made), inputs()
