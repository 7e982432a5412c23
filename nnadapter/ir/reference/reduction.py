"""The meanings of reductions, running sums, and the search for extreme elements."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import AXIS, LIKE_INPUT, Example, OperationDoc, counting, tensor

_KEEPDIMS = "True: the axes stay, with size 1. False: they go."
_ARGUMENT = {"output": "int64: indices along the axis, from 0. The axis has size 1, or goes."}


def _reduction(summary: str, formula: str, *traps: str, flops: str = "") -> OperationDoc:
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"input": "The numbers."},
        attributes={
            "axes": "Which axes are reduced: ascending, none twice, at least one, from 0 to rank - 1.",
            "keepdims": _KEEPDIMS,
        },
        outputs={"output": "The data type of `input`; the reduced axes have size 1, or go."},
        example=Example((counting(2, 3),), {"axes": (1,), "keepdims": False}),
        traps=(
            *traps,
            "`axes` is never empty: ONNX's reduction over no axis has become one over all, or ASSIGN.",
        ),
        flops=flops,
    )


def _argument(summary: str, formula: str, extreme: str) -> OperationDoc:
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"input": "The numbers."},
        attributes={
            "axis": AXIS,
            "keepdims": _KEEPDIMS,
            "select_last_index": f"Of several {extreme} elements, true takes the last one, false the first.",
        },
        outputs=_ARGUMENT,
        example=Example((tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 0.0]]),), {"axis": 1, "keepdims": False}),
        traps=(
            "The axis must have an element.",
            "With select_last_index, indices still count from the front.",
            f"The definition takes a NaN for the {extreme} element.",
        ),
    )


MEANINGS: Mapping[str, OperationDoc] = {
    "REDUCE_MEAN": _reduction(
        "The mean over axes.",
        "output = (sum of input over axes) / number of elements",
        "The mean of integers is cut off toward 0.",
        "The mean of no element is NaN; of integers it is undefined.",
        flops="1 for each element of the input, and 1 for each of the output",
    ),
    "REDUCE_SUM": _reduction(
        "The sum over axes.",
        "output = sum of input over axes",
        "Integers wrap around in their own data type: keep int32 in int32.",
        "The sum of no element is 0.",
    ),
    "REDUCE_MAX": _reduction(
        "The largest element over axes.",
        "output = max of input over axes",
        "No element at all gives -inf, or the smallest integer. NaN among the elements gives NaN.",
    ),
    "REDUCE_MIN": _reduction(
        "The smallest element over axes.",
        "output = min of input over axes",
        "No element at all gives inf, or the largest integer. NaN among the elements gives NaN.",
    ),
    "REDUCE_PROD": _reduction(
        "The product over axes.",
        "output = product of input over axes",
        "Integers wrap around.",
        "The product of no element is 1.",
    ),
    "ARG_MAX": _argument(
        "Where the largest element along an axis is.", "output[…] = i with input[…, i, …] the largest", "largest"
    ),
    "ARG_MIN": _argument(
        "Where the smallest element along an axis is.", "output[…] = i with input[…, i, …] the smallest", "smallest"
    ),
    "CUM_SUM": OperationDoc(
        summary="Running sums along an axis.",
        formula="output[…, i, …] = sum of input[…, j, …] for j <= i\n"
        "exclusive: for j < i. reverse: for j >= i, or j > i",
        inputs={"input": "The summands."},
        attributes={
            "axis": AXIS,
            "exclusive": "True: an element does not count itself; the first one (with reverse, the last) is 0.",
            "reverse": "True: from the end of the axis on. Elements keep their places.",
        },
        outputs=LIKE_INPUT,
        example=Example((tensor([1.0, 2.0, 3.0, 4.0]),), {"axis": 0, "exclusive": True, "reverse": True}),
        traps=("Integers wrap around.",),
    ),
    "TOP_K": OperationDoc(
        summary="The k largest or smallest elements along an axis, and where they are.",
        formula="values, indices = the first k along the axis of (input, index) in order",
        inputs={"input": "The numbers."},
        attributes={
            "k": "How many, from 0 to the size of the axis.",
            "axis": AXIS,
            "largest": "True: the largest, in descending order. False: the smallest, in ascending order.",
            "sorted": "False: the order of the k does not matter to whoever reads them. The definition sorts always.",
        },
        outputs={
            "values": "The data type of `input`; the axis has size k.",
            "indices": "int64, dimensions as `values`: where they were along the axis.",
        },
        example=Example((tensor([[1.0, 3.0, 2.0, 3.0]]),), {"k": 3, "axis": 1}),
        traps=(
            "Of equal elements the one with the lower index comes first, among the largest as among the smallest.",
            "A NaN counts as larger than everything.",
        ),
        flops="(number of binary digits of k, 1 at least) for each element of the input",
    ),
}
"""By operation."""
