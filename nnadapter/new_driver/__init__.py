"""A package with a small working driver in it, to start from; and Paddle's plug-in of a driver in C."""

from nnadapter.new_driver.plug_in import write_plug_in
from nnadapter.new_driver.writing import LANGUAGES, write_driver

__all__ = ["LANGUAGES", "write_driver", "write_plug_in"]
