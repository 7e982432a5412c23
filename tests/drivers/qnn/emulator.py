from __future__ import annotations

from nnadapter.drivers.boundary import open_context
from nnadapter.drivers.selection import select_one


def context(device="qnn", **options):
    return open_context(select_one(device, options))[1]
