"""Drivers that are shared libraries, behind the C interface of `nnadapter/include/nnadapter_driver.h`."""
