"""Bodies of fused matrix products: transposition, a factor, an activation."""

from __future__ import annotations

from nnadapter.onnx.body import BodyBuilder, function_op
from nnadapter.onnx.microsoft.elementwise import apply

_FACTORS = {"alpha": 1.0, "transA": 0, "transB": 0}


@function_op("FusedMatMul", "A B", "Y", {**_FACTORS, "transBatchA": 0, "transBatchB": 0})
def fused_matmul_body(body: BodyBuilder) -> tuple[str, ...]:
    """A matrix product of transposed inputs, times a factor. Source: com.microsoft FusedMatMul-1."""
    return (_product(body, trans_batch=True),)


@function_op("TransposeMatMul", "A B", "Y", _FACTORS)
def transpose_matmul_body(body: BodyBuilder) -> tuple[str, ...]:
    """The same under its first name. Source: com.microsoft TransposeMatMul-1."""
    return (_product(body, trans_batch=False),)


def _product(body: BodyBuilder, *, trans_batch: bool) -> str:
    sides = [_side(body, position, letter, trans_batch=trans_batch) for position, letter in enumerate("AB")]
    product = body.add("MatMul", *sides)
    alpha = body.node.number("alpha", 1.0)
    return product if alpha == 1 else body.add("Mul", product, body.constant(alpha, body.inputs.dtype()))


def _side(body: BodyBuilder, position: int, letter: str, *, trans_batch: bool) -> str:
    """A factor, its axes in the order of the product.

    With `transBatch` the first axis of the batch comes behind the batch; then `trans` exchanges the last two.
    """
    axes = list(range(body.inputs.rank(position)))
    if trans_batch and body.node.integer(f"transBatch{letter}", 0) and len(axes) > 2:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if body.node.integer(f"trans{letter}", 0) and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    name = body.input(position)
    return name if axes == sorted(axes) else body.add("Transpose", name, perm=axes)


@function_op(
    "FusedGemm",
    "A B C?",
    "Y",
    {
        **_FACTORS,
        "beta": 1.0,
        "activation": str,
        "activation_alpha": float,
        "activation_beta": float,
        "activation_gamma": float,
    },
)
def fused_gemm_body(body: BodyBuilder) -> tuple[str, ...]:
    """Gemm with an activation behind it. Source: com.microsoft FusedGemm-1."""
    node = body.node
    stated = {name: node.attributes.get(name) for name in ("alpha", "beta", "transA", "transB")}
    product = body.add("Gemm", *(body.input(position) for position in range(3)), **stated)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = [node.number(name) for name in names if name in node.attributes]
    return (apply(body, product, node.text("activation", ""), parameters),)
