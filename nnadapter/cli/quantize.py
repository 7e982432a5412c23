"""`nnadapter quantize`: QDQ models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import nnadapter
from nnadapter.cli import parameters
from nnadapter.cli.command import MODELS, Command
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.quantization.calibration import RANGES
from nnadapter.quantization.qdq import WAYS
from nnadapter.quantization.quantize import MOST_SAMPLES
from nnadapter.report.sections import count, quantity

takes_data = click.option(
    "--data", required=True, metavar="PATH",
    help=("Sample inputs: a folder of .npz files (input name -> array), .npy files or pictures, or one such file. "
"An .npz file may also hold arrays of several samples along an additional first axis."),
)  # fmt: skip
takes_max_samples = click.option(
    "--max-samples", type=click.IntRange(min=1), default=MOST_SAMPLES, show_default=True,
    help="Maximum number of samples of --data to use.",
)  # fmt: skip


@click.command(cls=Command, epilog=MODELS)
@click.argument("model")
@takes_data
@click.option("-o", "--output", required=True, metavar="FILE", help="ONNX file to write.")
@click.option(
    "--precision", type=parameters.OneOf([way.value for way in WAYS]), default=WAYS[0].value, show_default=True,
    help=("w8a8, w8a16: integer weights of 8 bits and activations of 8 or 16; w8: only weights; w4a16: only weights of "
"matrix products, of 4 bits."),
)  # fmt: skip
@click.option(
    "--ranges", type=parameters.OneOf(RANGES), default="mse", show_default=True,
    help=("Range of activations. minmax: all values; percentile: all but 0.01 %; entropy: least Kullback-Leibler "
"divergence; mse: least squared error."),
)  # fmt: skip
@click.option("--per-tensor", is_flag=True, help="Use one scale per weight tensor instead of one per output channel.")
@click.option("--symmetric", is_flag=True, help="Put zero points of activations in the middle of the integer range.")
@click.option(
    "--reduced", is_flag=True,
    help="Use 7-bit weights, for x86 processors without VNNI, where sums of 8-bit products saturate.",
)  # fmt: skip
@click.option(
    "--smooth", type=click.FloatRange(0, 1), default=0.0, metavar="ALPHA",
    help="SmoothQuant: share of outliers that moves from activations to weights of matrix products.  [default: 0]",
)  # fmt: skip
@click.option(
    "--equalize", is_flag=True, help="Before quantizing, equalize the weight ranges of consecutive convolutions."
)
@click.option("--no-bias-correction", is_flag=True, help="Do not shift biases to keep the mean of each channel.")
@click.option(
    "--float-results", is_flag=True,
    help="Leave results of convolutions in float32, which is more accurate; most engines then compute in float32.",
)  # fmt: skip
@click.option(
    "--every-operator", is_flag=True,
    help="Quantize all operators on floats, for devices that compute only on integers.",
)  # fmt: skip
@click.option(
    "--exclude", multiple=True, metavar="NODE",
    help="Nodes to leave in float32: a name, a pattern with *, or an op type. Repeat the option for several.",
)  # fmt: skip
@takes_max_samples
@parameters.takes_json
def quantize(
    model: str, data: str, output: str, per_tensor: bool, no_bias_correction: bool, float_results: bool,
    as_json: bool, **settings: Any
) -> None:  # fmt: skip
    """Quantize MODEL after training, and write it with QuantizeLinear and DequantizeLinear nodes for any runtime.

    Convolutions and matrix products compute on integers, everything else in float32. `nnadapter tune` chooses nodes,
    precisions and devices under a limit of accuracy instead.
    """
    source = parameters.converted(model, Options())
    with prints_to_stderr(), parameters.progress("calibrating") as advance:
        quantized = nnadapter.quantize(
            source, data, output, per_channel=not per_tensor, correct_bias=not no_bias_correction,
            results=not float_results, advance=advance, **settings,
        )  # fmt: skip
    op_types = [node.op_type for node in quantized.graph.node]
    activations = op_types.count("QuantizeLinear")
    constants = op_types.count("DequantizeLinear") - activations
    size = Path(output).stat().st_size
    if as_json:
        facts = {"file": output, "bytes": size, "quantized_activations": activations, "quantized_constants": constants}
        click.echo(parameters.to_json(facts))
        return
    numbers = f"{count(activations, 'quantized activation')}, {count(constants, 'quantized constant')}"
    click.echo(f"{output}: {quantity(size, 'B')}, {numbers}")
    click.echo(f"compare it with: nnadapter compare {output} --reference {model} --layers")
