"""`nnadapter export`: a model of the adapter IR as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import click

from nnadapter.cli.command import Command


@click.command(cls=Command)
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="FILE", help="The ONNX file to write.")
def export(model: str, output: str) -> None:
    """Write MODEL, a file of the adapter IR, as ONNX.

    MODEL is what nnadapter.ir.protobuf.save wrote. Where ONNX has no op for an operation, it becomes several. Models
    of 2 GiB and more have their weights in FILE.data.
    """
    from nnadapter.exporting import to_onnx  # the help needs neither
    from nnadapter.ir.protobuf import load
    from nnadapter.onnx.files import save_model

    if Path(output).resolve() == Path(model).resolve():
        raise click.UsageError(f"{output!r} is the model itself; give the ONNX file another name")
    contents = load(model)
    written = to_onnx(contents)  # refers to weights that `contents` holds
    save_model(written, output)
    click.echo(
        f"{output}: {len(written.graph.node)} nodes for {contents.operation_count} operations, opset "
        f"{next(entry.version for entry in written.opset_import if not entry.domain)}"
    )
