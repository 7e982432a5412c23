"""Eager tensors: they live on a device and compute there, one operation at a time, through numpy's protocols."""
