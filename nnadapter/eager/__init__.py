"""Eager tensors on a device, through numpy's protocols."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".execution": "OperationCall ProgramCache RESIDENTS",
        ".tensor": "UFUNCS",
    },
)
