"""A package with a small working driver in it, to start from; and Paddle's plug-in of a driver in C."""

from nnadapter.new_driver.packages import LANGUAGES, write_driver, write_plug_in

__all__ = ["LANGUAGES", "write_driver", "write_plug_in"]
