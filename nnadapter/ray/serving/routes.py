"""Addresses of a server. Source: Open Inference Protocol v2; the report is ours."""

from __future__ import annotations

import re
from enum import Enum, auto
from urllib.parse import unquote

from nnadapter.ray.serving.faults import HttpError
from nnadapter.ray.serving.writing import VERSION


class Route(Enum):
    """What is asked for."""

    SERVER = auto()
    LIVE = auto()
    READY = auto()
    MODEL = auto()
    INFER = auto()
    REPORT = auto()
    REPORT_PAGE = auto()


_OF_SERVER = {"/v2": Route.SERVER, "/v2/health/live": Route.LIVE, "/v2/health/ready": Route.READY}
_OF_MODEL = {
    "": ("GET", Route.MODEL),
    "/ready": ("GET", Route.READY),
    "/infer": ("POST", Route.INFER),
    "/report": ("GET", Route.REPORT),
    "/report.html": ("GET", Route.REPORT_PAGE),
}
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer|/report|/report\.html)?")
_SHOWN = 100


def route_of(method: str, path: str, model: str) -> Route:
    """Return what an address stands for.

    Raises:
        HttpError: nothing (404), or it is asked in another way (405).
    """
    path = path.rstrip("/")
    match = _MODEL.fullmatch(path)
    if match is None:
        if path not in _OF_SERVER:
            raise HttpError(404, f"there is nothing at {path[:_SHOWN]!r}; the model is at '/v2/models/{model}'")
        expected_method, route = "GET", _OF_SERVER[path]
    else:
        name, version, subpath = match.groups()
        if unquote(name) != model:
            raise HttpError(404, f"there is no model {unquote(name)[:_SHOWN]!r}; this server has {model!r}")
        if version not in (None, VERSION):
            raise HttpError(404, f"model {model!r} has version {VERSION!r} alone, not {version[:_SHOWN]!r}")
        expected_method, route = _OF_MODEL[subpath or ""]
    if method != expected_method and not (expected_method == "GET" and method == "HEAD"):
        raise HttpError(405, f"{path[:_SHOWN]!r} is asked by {expected_method}, not {method[:_SHOWN]}")
    return route
