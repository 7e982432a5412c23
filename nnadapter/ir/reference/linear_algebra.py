"""The meanings of small linear algebra."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import LIKE_INPUT, Example, OperationDoc, counting, tensor

MEANINGS: Mapping[str, OperationDoc] = {
    "TRILU": OperationDoc(
        summary="A triangle of every matrix; zeros elsewhere.",
        formula="upper: output[…, i, j] = input[…, i, j] if j - i >= k, else 0\n"
        "lower: output[…, i, j] = input[…, i, j] if j - i <= k, else 0",
        inputs={"input": "Matrices […, rows, columns]."},
        attributes={
            "upper": "True: the upper triangle. False: the lower one.",
            "k": "Where the triangle ends: 0 the main diagonal, 1 the one above it, -1 the one below.",
        },
        outputs=LIKE_INPUT,
        example=Example((counting(3, 3),), {"upper": False, "k": -1}),
        traps=("The diagonal k itself belongs to either triangle.", "ONNX's k is an input, and here a number."),
    ),
    "DETERMINANT": OperationDoc(
        summary="The determinant of every matrix.",
        formula="output[…] = det(input[…, :, :])",
        inputs={"input": "Square matrices […, n, n]."},
        outputs={"output": "The data type of `input`; the last two axes go."},
        example=Example((tensor([[1.0, 2.0], [3.0, 4.0]]),)),
        traps=("The determinant of a matrix of 0 rows is 1.",),
        flops="floor(2 / 3 * n^3) + n for each matrix",
    ),
    "EINSUM": OperationDoc(
        summary="Sums of products, as an equation says them.",
        formula="output[result] = sum over all other letters of inputs[0][term 0] * inputs[1][term 1] * …",
        inputs={"inputs": "One for each term, of one data type."},
        attributes={
            "equation": "Terms with commas between them, then `->` and the result: a letter for each axis. `...`"
            " stands for leading axes. Without `->`, the result is the ellipsis and the letters that occur once, in"
            " ASCII's order."
        },
        outputs={"output": "The inputs' data type; a dimension for each letter of the result."},
        example=Example((counting(2, 2), tensor([10.0, 1.0])), {"equation": "ij,j->i"}),
        traps=(
            "A letter twice in one term is the diagonal.",
            "An axis of size 1 spreads to the size that its letter has elsewhere.",
            "Spaces mean nothing; upper and lower case differ. A result must not have a letter twice.",
            "Integers wrap around.",
        ),
        flops="per input but the first: product of its letters' sizes and of those still read of what is before it "
        "* (1, and 1 more if a letter is summed over)",
    ),
}
"""By operation."""
