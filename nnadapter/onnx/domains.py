"""Spellings of ONNX's own domain, and qualified names of ops."""

from __future__ import annotations


def plain_domain(domain: str) -> str:
    """Return the domain, with "ai.onnx" replaced by its other spelling, the empty string."""
    return "" if domain == "ai.onnx" else domain


def op_name(domain: str, op_type: str) -> str:
    """Return the op type, prefixed by its domain unless that is ONNX's own."""
    domain = plain_domain(domain)
    return f"{domain}::{op_type}" if domain else op_type
