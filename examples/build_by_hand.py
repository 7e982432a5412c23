"""Build a small network operand by operand, run it on a device, and compare with numpy. No ONNX is involved.

    python examples/build_by_hand.py [-d DEVICE]

Then build several invalid models, and print their errors.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import nnadapter as nna
from nnadapter.ir import DataType, Model, OperandType

PICTURE = OperandType(DataType.FLOAT32, (1, 3, 8, 8))
GENERATOR = np.random.default_rng(8)
FILTER = GENERATOR.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
WEIGHT = GENERATOR.normal(0, 0.3, (10, 36)).astype(np.float32)
BIAS = GENERATOR.normal(0, 0.3, 10).astype(np.float32)


def main() -> None:
    """Build, run and compare a network; then build invalid ones."""
    parser = argparse.ArgumentParser(description="Build a network by hand and run it on a device.")
    parser.add_argument("-d", "--device", default="fake_npu", help="what `nnadapter devices` lists (default: fake_npu)")
    name = parser.parse_args().device
    picture = GENERATOR.random(PICTURE.dimensions, dtype=np.float32)
    with nna.Device.acquire(name) as device, nna.Context(device) as context:
        probabilities = run(context, build(), picture)
        difference = np.abs(probabilities - by_numpy(picture)).max()
        print(f"class {probabilities.argmax()}, largest difference to numpy {difference:.1e}\n")
        for wrong in WRONG:
            try:
                wrong(context)
            except nna.errors.NNAdapterError as error:
                print(f"{wrong.__doc__}\n    {type(error).__name__}: {error}")


def build() -> Model:
    """Return a network: image -> ten probabilities."""
    builder = nna.ModelBuilder()
    picture = builder.add_input("picture", PICTURE)
    (features,) = builder.add_operation("CONV_2D", (picture, builder.add_constant("filter", FILTER)))
    (features,) = builder.add_operation("RELU", (features,))
    (features,) = builder.add_operation("MAX_POOL_2D", (features,), {"kernel_shape": (2, 2), "strides": (2, 2)})
    (row,) = builder.add_operation("RESHAPE", (features,), {"shape": (1, 36)})
    weight, bias = builder.add_constant("weight", WEIGHT), builder.add_constant("bias", BIAS)
    (scores,) = builder.add_operation("FULLY_CONNECTED", (row, weight, bias))
    return builder.finish(builder.add_operation("SOFTMAX", (scores,), {"axis": 1}, outputs=["probabilities"]))


def run(context: nna.Context, model: Model, picture: np.ndarray) -> np.ndarray:
    """Print the device's verdicts, compile, and compute once."""
    compilation = nna.Compilation(context, model)
    for operation, verdict in zip(model.operations, compilation.verdicts, strict=True):
        print(f"{operation.type:16} {'yes' if verdict else verdict}")
    with nna.Execution(compilation.compile()) as execution:
        execution.set_input("picture", picture)
        return execution.compute()[0]


def by_numpy(picture: np.ndarray) -> np.ndarray:
    """Compute the network in numpy."""
    windows = sliding_window_view(picture, (3, 3), axis=(2, 3))  # [N, C, H, W, 3, 3]
    features = np.maximum(np.einsum("nchwij,kcij->nkhw", windows, FILTER), 0)
    features = features.reshape(1, 4, 3, 2, 3, 2).max(axis=(3, 5))
    scores = np.exp(features.reshape(1, 36) @ WEIGHT.T + BIAS)
    return scores / scores.sum(axis=1, keepdims=True)


def wrong_rank(context: nna.Context) -> None:
    """A convolution of an operand that is not an image."""
    builder = nna.ModelBuilder()
    row = builder.add_input("row", OperandType(DataType.FLOAT32, (3, 8)))
    builder.add_operation("CONV_2D", (row, builder.add_constant("filter", FILTER)))


def wrong_dtype(context: nna.Context) -> None:
    """Two operands of different data types."""
    builder = nna.ModelBuilder()
    picture = builder.add_input("picture", PICTURE)
    builder.add_operation("ADD", (picture, builder.add_constant("one", np.ones(1, np.float64))))


def wrong_attribute(context: nna.Context) -> None:
    """An attribute that the operation does not have."""
    builder = nna.ModelBuilder()
    builder.add_operation("SOFTMAX", (builder.add_input("picture", PICTURE),), {"axes": 1})


def wrong_operand(context: nna.Context) -> None:
    """An operand that does not exist."""
    nna.ModelBuilder().add_operation("RELU", (5,))


def wrong_model(context: nna.Context) -> None:
    """A model that the device does not support."""
    builder = nna.ModelBuilder()
    picture = builder.add_input("picture", OperandType(DataType.UINT16, PICTURE.dimensions))
    nna.Compilation(context, builder.finish(builder.add_operation("RELU", (picture,)))).compile()


def wrong_input(context: nna.Context) -> None:
    """An input of another shape."""
    with nna.Execution(nna.Compilation(context, build())) as execution:
        execution.set_input("picture", np.zeros((1, 3, 9, 9), np.float32))


WRONG = (wrong_rank, wrong_dtype, wrong_attribute, wrong_operand, wrong_model, wrong_input)


if __name__ == "__main__":
    main()
