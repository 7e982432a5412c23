"""The process that converts: it imports Paddle and paddle2onnx, and what goes wrong in them ends it alone.

It is given a folder with `model.json` or `model.pdmodel`, and `model.pdiparams` if there are parameters. It writes
`model.onnx`, and `told.json` beside it, which says what is known of a failure. When the process that started it is
gone, it removes the folder and ends.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from pathlib import Path

OPSET = 17
"""Asked for; the converter takes a higher one where an operation needs it."""

NO_ROOM = 74
"""The exit code where the folder's disk is full: then nothing can be told in a file."""
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def main(name: str) -> None:
    """Convert what lies in the folder of that name."""
    folder = Path(name)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        (folder / "model.onnx").write_bytes(_converted(folder))
    except Exception as error:  # noqa: BLE001  whatever they raise is said by the process that waits
        if isinstance(error, OSError) and error.errno in _FULL:
            sys.exit(NO_ROOM)
        _report_facts(folder, error=" ".join(f"{type(error).__name__}: {error}".split()))
        sys.exit(1)


def _converted(folder: Path) -> bytes:
    import paddle2onnx
    from paddle2onnx.utils import get_all_supported_operators_pir

    from nnadapter.paddle_models.comparison import compared
    from nnadapter.paddle_models.model_files import check_whole
    from nnadapter.paddle_models.repair import mark, repair_model, without_rounding
    from nnadapter.paddle_models.structures import draws_numbers, operations_of, rewrite, unsupported_in

    structure, parameters = folder / "model.json", folder / "model.pdiparams"
    if parameters.exists():
        check_whole(parameters)
    outputs: list[str] = []
    if not structure.exists():
        structure, parameters, outputs = _translated(folder)
    program = json.loads(structure.read_bytes())
    operations = operations_of(program["program"])
    _report_facts(folder, unsupported=unsupported_in(operations, get_all_supported_operators_pir()))
    is_rewritten, quantizing = rewrite(program["program"]), mark(program["program"])
    converted = folder / "rewritten.json" if is_rewritten or quantizing else structure
    if converted != structure:
        converted.write_text(json.dumps(program))
    parameters_path = str(parameters) if parameters.exists() else ""
    # `enable_optimize` installs packages by itself.
    written = paddle2onnx.export(str(converted), parameters_path, None, OPSET, enable_optimize=False)
    if not written:
        raise ValueError("it gave no model")
    contents = repair_model(written, outputs, quantizing)
    original = folder / ("model.pdmodel" if outputs else "model.json")
    comparison = compared(
        without_rounding(contents) if quantizing else contents,
        original,
        folder / "model.pdiparams",
        draws=draws_numbers(program["program"]),
    )
    _report_facts(folder, wrong=comparison.wrong, doubt=comparison.doubt)
    if comparison.wrong:
        sys.exit(1)
    return contents


def _translated(folder: Path) -> tuple[Path, Path, list[str]]:
    """A program of Paddle 2 as one of Paddle 3: its files, and the names that its outputs had."""
    import paddle
    from paddle2onnx import load_parameter, save_program

    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.pir_utils.OldIrGuard():
        program, _, targets = paddle.static.load_inference_model(str(folder / "model"), executor)
    translated = paddle.pir.translate_to_pir(program.desc)
    load_parameter(translated)
    save_program(translated, str(folder / "translated"))
    return folder / "translated.json", folder / "translated.pdiparams", [target.name for target in targets]


def _report_facts(folder: Path, **facts: object) -> None:
    (folder / "told.json").write_text(json.dumps(facts))


def _end_with_parent(folder: Path) -> None:
    """Wait for the end of standard input, which the other process holds open."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
