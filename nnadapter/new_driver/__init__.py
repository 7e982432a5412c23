"""A package with a small working driver in it, to start from."""

from nnadapter.new_driver.writing import LANGUAGES, write_driver

__all__ = ["LANGUAGES", "write_driver"]
