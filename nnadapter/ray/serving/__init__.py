"""HTTP server of a model by the Open Inference Protocol v2, for Ray Serve."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".application": "free_port",
        ".batching": "Batcher QueuedRequest",
        ".protocol": (
            "HEADER_LENGTH HttpError InferenceRequest Route http_error model_metadata read_request route_of written"
        ),
        ".request_body": "body_of length_of",
    },
)
