"""Paddle's pool of predictors, one for each thread."""

from __future__ import annotations

from nnadapter.errors import InvalidOptionError
from nnadapter.paddle.config import Config
from nnadapter.paddle.predictor import Predictor, create_predictor


class PredictorPool:
    """Predictors of one model, which share what is compiled. Source: paddle.inference.PredictorPool.

    Args:
        config: of the model.
        size: how many there are.
    """

    def __init__(self, config: Config, size: int = 1) -> None:
        if size < 1:
            raise InvalidOptionError(f"a pool holds at least 1 predictor, got {size}")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        """Return the predictor of a number, from 0."""
        if not 0 <= index < len(self._predictors):
            raise InvalidOptionError(
                f"the pool holds {len(self._predictors)} predictors, there is none of number {index}"
            )
        return self._predictors[index]

    retrive = retrieve
    """As Paddle 2 wrote it."""
