"""A shared library -> the functions of a driver, checked; everything that can be wrong with it is one sentence."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.layout import FUNCTIONS, GROUPS, LATER, REQUIRED, STRUCTURES, VERSION
from nnadapter.drivers.native.structures import CODED_VERSION, SIGNATURES, read, read_text
from nnadapter.drivers.native.truncation import missing_bytes
from nnadapter.errors import DeviceUnavailableError

SYMBOL = "nnadapter_driver"
"""The one name that a driver exports."""
_PREAMBLE = 8  # bytes of size and version, which every structure begins with


def load(driver: str, path: Path) -> Functions:
    """Load the library at `path` and return its functions. It stays loaded as long as the process lives.

    Raises:
        DeviceUnavailableError: it is not there, does not load, has no such symbol, is for another interface version, or
            lacks functions.
    """
    table = _table(path)
    _check_version(path, table)
    driver_table = read("Driver", table)
    functions = _functions("Driver", driver_table)
    missing = [name for name in REQUIRED if name not in functions]
    if missing:
        raise DeviceUnavailableError(
            f"{path} lacks the required functions {', '.join(missing)}; its vendor must write them"
        )
    for member, structure in GROUPS.items():
        functions.update(_group(path, member, structure, getattr(driver_table, member)))
    return Functions(driver, functions, read_text(driver_table.vendor), read_text(driver_table.driver_version))


def _table(path: Path) -> int:
    """The address of the driver's table."""
    if not path.is_file():
        raise DeviceUnavailableError(f"the driver's library {path} is not there; install the driver again")
    try:
        missing = missing_bytes(path)
        if missing:
            raise DeviceUnavailableError(f"the last {missing} bytes of {path} are missing; install the driver again")
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceUnavailableError(
            f"the driver's library did not load: {' '.join(str(error).split())}; "
            "install what it needs, or a build of it for this machine"
        ) from error
    try:
        give = SIGNATURES[SYMBOL]((SYMBOL, library))
    except AttributeError:
        raise DeviceUnavailableError(
            f"{path} exports no {SYMBOL}; it is no driver, or was built with its symbols hidden"
        ) from None
    address = give(CODED_VERSION)
    if not address:
        raise DeviceUnavailableError(
            f"{path} does not serve driver interface {_dotted(VERSION)}; install a driver for {VERSION[0]}.x"
        )
    return int(address)


def _check_version(path: Path, table: int) -> None:
    size, coded = (ctypes.c_uint32 * 2).from_address(table)
    version = (coded >> 16, coded & 0xFFFF)
    if version[0] != VERSION[0] or version[1] > VERSION[1]:
        raise DeviceUnavailableError(
            f"{path} was written for driver interface {_dotted(version)}, this nnadapter has {_dotted(VERSION)}; "
            f"install a driver for {VERSION[0]}.x or another nnadapter"
        )
    if size < _PREAMBLE:
        raise DeviceUnavailableError(
            f"the table of {path} says it has {size} bytes, expected its sizeof; its vendor must set `size`"
        )


def _functions(structure: str, table: Any) -> dict[str, Any]:
    """The functions of a table that are there."""
    names = [name for name, _ in STRUCTURES[structure] if name in FUNCTIONS]
    addresses = {name: getattr(table, name) for name in names}
    return {name: SIGNATURES[name](address) for name, address in addresses.items() if address}


def _group(path: Path, member: str, structure: str, address: int | None) -> dict[str, Any]:
    """The functions of a group: all or none, but for those that came to it later."""
    if not address:
        return {}
    functions = _functions(structure, read(structure, address))
    missing = [name for name, _ in STRUCTURES[structure] if name in FUNCTIONS.keys() - LATER and name not in functions]
    if missing:
        raise DeviceUnavailableError(
            f"{path} has the group {member!r} without {', '.join(missing)}; its vendor must write all of it or none"
        )
    return functions


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
