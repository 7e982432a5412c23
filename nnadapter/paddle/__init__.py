"""Paddle's predictor over sessions: a deployment script changes one import, and docs/paddle.md says what it gets.

    from nnadapter import paddle as paddle_infer   # was: import paddle.inference as paddle_infer

Inside this room `paddle` is never Paddle, which is imported by the process alone that converts models
(`nnadapter/paddle_models`). Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.paddle.config import Config
    from nnadapter.paddle.handle import Tensor
    from nnadapter.paddle.pool import PredictorPool
    from nnadapter.paddle.predictor import Predictor, create_predictor
    from nnadapter.paddle.types import DataType, PlaceType, PrecisionType, get_num_bytes_of_data_type, get_version

_HOMES = {
    "Config": "nnadapter.paddle.config",
    "DataType": "nnadapter.paddle.types",
    "PlaceType": "nnadapter.paddle.types",
    "PrecisionType": "nnadapter.paddle.types",
    "Predictor": "nnadapter.paddle.predictor",
    "PredictorPool": "nnadapter.paddle.pool",
    "Tensor": "nnadapter.paddle.handle",
    "create_predictor": "nnadapter.paddle.predictor",
    "get_num_bytes_of_data_type": "nnadapter.paddle.types",
    "get_version": "nnadapter.paddle.types",
}
"""Where each public name lives."""

__all__ = [
    "Config",
    "DataType",
    "PlaceType",
    "PrecisionType",
    "Predictor",
    "PredictorPool",
    "Tensor",
    "create_predictor",
    "get_num_bytes_of_data_type",
    "get_version",
]

__getattr__ = lazily(__name__, _HOMES)
