"""Compositions on a device, compared with onnx's reference evaluator.

    python -m tests.compositions.checking DEVICE FIRST COUNT [--dynamic] [--only FRAGMENT ...]

prints each composition that is wrong, fails or ends the process. DEVICE is cpu, openvino or fake_npu. On fake_npu drawn
operators are switched off, so that segments of the CPU alternate with its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import nnadapter as nna
from tests.compositions.generator import Composition, generate

TOLERANCES = {TensorProto.FLOAT: 1e-3, TensorProto.FLOAT16: 3e-2, TensorProto.DOUBLE: 1e-3}
"""Relative to the magnitude of an output. A fusion may reorder sums, and some engines compute float64 in float32."""


_SWITCHES = {"Abs", "Add", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "Div", "Elu", "Erf", "Exp", "Expand"}
_SWITCHES |= {"Gemm", "HardSigmoid", "Identity", "LeakyRelu", "Log", "MatMul", "Max", "Min", "Mul", "Neg", "Pow"}
_SWITCHES |= {"Reciprocal", "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Softmax", "Softplus"}
_SWITCHES |= {"Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"}
"""ONNX operators that fake_npu can switch off."""


def devices_for(composition: Composition, device: str) -> list[object]:
    """Return the devices argument of a session."""
    if device != "fake_npu":
        return [device]
    ops = sorted({node.op_type for node in composition.model.graph.node} & _SWITCHES)
    refused = Random(composition.seed).sample(ops, (len(ops) * 2 + 2) // 3)
    return [("fake_npu", {"switched_off": ",".join(refused)}), "cpu"]


def check(composition: Composition, device: str) -> str:
    """Return what is wrong with the results of a device, or an empty text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with nna.InferenceSession(composition.model, devices=devices_for(composition, device)) as session:
                results = session.run(None, composition.feeds)
        except nna.errors.NNAdapterError as error:
            return f"{type(error).__name__}: {error}"
    for warning in caught:
        if issubclass(warning.category, nna.errors.FallbackWarning) and "failed" in str(warning.message):
            return f"{warning.category.__name__}: {warning.message}"
    expected = _evaluate(composition.model, composition.feeds)
    tolerance = TOLERANCES[composition.model.graph.input[0].type.tensor_type.elem_type]
    wrong = [at for at, pair in enumerate(zip(results, expected, strict=True)) if not _close(*pair, tolerance)]
    if not wrong:
        return ""
    if not {"quantized_input", "quantization_axes", "nearly_neutral"} & set(
        composition.fragments
    ):  # these differ in another data type
        feeds = {name: array.astype(np.float64) for name, array in composition.feeds.items()}
        exact = _evaluate(_in_float64(composition.model), feeds)
        wrong = [at for at in wrong if _close(expected[at], exact[at], tolerance / 10)]  # others are ill-conditioned
    return "; ".join(
        f"{composition.model.graph.output[at].name}: got {results[at].shape} {results[at].ravel()[:4]}, "
        f"expected {expected[at].shape} {expected[at].ravel()[:4]}"
        for at in wrong
    )


def _evaluate(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)


def _close(result: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    if result.shape != expected.shape:
        return False
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite]).max(initial=1.0)
    same = np.array_equal(result[~finite], expected[~finite], equal_nan=True)
    return bool(same and (np.abs(result[finite] - expected[finite]) <= tolerance * scale).all())


def _in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with float64 in place of its floating-point type."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    constants = [attribute.t for node in graph.node for attribute in node.attribute if attribute.name == "value"]
    for tensor in (*graph.initializer, *constants):
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast":
                attribute.i = TensorProto.DOUBLE
    return result


def check_range(
    device: str, first: int, count: int, *, dynamic: bool = False, only: tuple[str, ...] = ()
) -> dict[int, str]:
    """Check the compositions of some seeds in a child process, and go on after a crash.

    Returns:
        What is wrong, by seed.
    """
    failures: dict[int, str] = {}
    end = first + count
    while first < end:
        words = [sys.executable, "-m", "tests.compositions.checking", device, str(first), str(end - first), "--here"]
        words += ["--dynamic"] * dynamic + ["--only", *only] * bool(only)
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                kind, seed, text = line.rstrip("\n").split("\t", 2)
                first = int(seed)
                if kind == "wrong":
                    failures[first] = text
        if process.wait() != 0:
            failures[first] = f"the process ended with {process.returncode}"
        first += 1
    return failures


def main() -> None:
    """Check compositions here, or in child processes that may crash."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--here", action="store_true", help="check in this process, print tabular lines")
    parser.add_argument("--show", action="store_true", help="print the model as well")
    given = parser.parse_args()
    if given.here:
        for seed in range(given.first, given.first + given.count):
            print("begin", seed, "", sep="\t", flush=True)
            text = check(generate(seed, dynamic=given.dynamic, only=given.only), given.device)
            if text:
                print("wrong", seed, text.replace("\n", " "), sep="\t", flush=True)
        return
    failures = check_range(given.device, given.first, given.count, dynamic=given.dynamic, only=tuple(given.only))
    for seed, text in failures.items():
        print(f"{seed}: {text}")
        if given.show:
            print(generate(seed, dynamic=given.dynamic, only=given.only).text)
    print(f"{len(failures)} of {given.count} compositions fail on {given.device}")


if __name__ == "__main__":
    main()
