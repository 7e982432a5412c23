"""Packages to start a driver from, and Paddle plug-ins of C drivers."""

from nnadapter.new_driver.packages import LANGUAGES, write_driver, write_plug_in

__all__ = ["LANGUAGES", "write_driver", "write_plug_in"]
