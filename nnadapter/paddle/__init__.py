"""Paddle's predictor API, implemented by sessions; a deployment script changes one import. See docs/paddle.md.

    from nnadapter import paddle as paddle_infer   # was: import paddle.inference as paddle_infer

Only `nnadapter.paddle.worker` imports Paddle itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.paddle.config import (
        Config,
        DataType,
        PlaceType,
        PrecisionType,
        get_num_bytes_of_data_type,
        get_version,
    )
    from nnadapter.paddle.predictor import Predictor, PredictorPool, Tensor, create_predictor


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

__getattr__ = lazily(
    __name__,
    {
        ".config": "Config DataType PlaceType PrecisionType get_num_bytes_of_data_type get_version",
        ".predictor": "Predictor PredictorPool Tensor create_predictor",
    },
)
