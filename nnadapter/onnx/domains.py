"""ONNX's own domain, which has two spellings, and how ops are called beside those of other domains."""

from __future__ import annotations


def plain_domain(domain: str) -> str:
    """The one spelling of ONNX's own domain, which has two."""
    return "" if domain == "ai.onnx" else domain


def op_name(domain: str, op_type: str) -> str:
    """An op in words: its type, behind the domain where that is another than ONNX's own."""
    domain = plain_domain(domain)
    return f"{domain}::{op_type}" if domain else op_type
