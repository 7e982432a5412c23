"""A model behind HTTP, by the Open Inference Protocol v2: what Ray Serve calls with each request."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".application": "free_port",
        ".protocol": (
            "HEADER_LENGTH HttpError InferenceRequest Route body_of http_error length_of model_metadata "
            "read_request route_of written"
        ),
        ".batching": "Batcher QueuedRequest",
    },
)
