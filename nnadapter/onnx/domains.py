"""Spellings of domains, and qualified op names."""

from __future__ import annotations


def plain_domain(domain: str) -> str:
    """Return the domain, empty for "ai.onnx"."""
    return "" if domain == "ai.onnx" else domain


def op_name(domain: str, op_type: str) -> str:
    """Return the op type, prefixed by a domain other than ONNX's."""
    domain = plain_domain(domain)
    return f"{domain}::{op_type}" if domain else op_type
