"""Whether a compiled model runs here as it is: every byte, every device and every program looked at, nothing run."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.compiled_models.compiled_file import CompiledFile
from nnadapter.compiled_models.devices import FileDevice, FileDevices, open_devices, reason_against
from nnadapter.compiled_models.messages import PROGRAM, Message
from nnadapter.compiled_models.words import plans_held
from nnadapter.drivers.selection import CPU
from nnadapter.errors import NNAdapterError, describe
from nnadapter.options import Options
from nnadapter.traces.trace import SILENT


def reasons_against(file: CompiledFile) -> tuple[str, ...]:
    """Return why a file would not run here as it is, in words; none where it would.

    Raises:
        CompiledModelError: the file is damaged.
    """
    file.container.verify()
    plans_held(file)
    reasons: dict[str, None] = {}
    for record in file.message.devices:
        try:
            devices = open_devices([record], None, "forbid", None, SILENT, Options().isolated)
        except NNAdapterError as error:
            reasons[describe(error)] = None
            continue
        try:
            reasons.update(dict.fromkeys(_of_device(file, record.name, devices)))
        finally:
            devices.close()
    return tuple(reasons)


def _of_device(file: CompiledFile, name: str, devices: FileDevices) -> Iterator[str]:
    device = devices.opened.get(name)
    if device is None or name == CPU:
        return
    for plan in file.message.plans:
        for number, step in enumerate(plan.steps):
            if step.device == name:
                yield from _of_step(file, number, step, device)


def _of_step(file: CompiledFile, number: int, step: Message, device: FileDevice) -> Iterator[str]:
    programs = [step.program] if step.HasField("program") else [row.program for row in step.filled]
    for program in programs:
        blob = file.container.contents(program.part, PROGRAM)
        why = reason_against(device, blob, (number, list(step.nodes)))
        if why:
            yield f"segment {number} is compiled again for {device.name!r}: {why}"
    if not programs and not device.is_as_kept:
        yield f"the driver of {device.name!r} is another one here, and compiles segment {number} when it is loaded"
