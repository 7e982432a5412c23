"""A module whose parameters live on a device, as those of `module.to("cuda")` do: see `resident.py`.

PyTorch's own tensors lie in the host's memory, where anybody may read them through an address, and no one is told. So
what a graph computes for them has to be there after each call. Where a person says that parameters live on a device,
they are tensors of another kind, which tell when they are read; so are their gradients, and the state that optimizers
make like them.
"""

from __future__ import annotations

import torch

from nnadapter.drivers.copies import Copies
from nnadapter.drivers.selection import canonical
from nnadapter.running.residence import has_memory
from nnadapter.torch.arrays import to_array
from nnadapter.torch.resident import Resident, untold

_DTYPES = frozenset(
    (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    )
)
"""Data types that sessions take."""


def move(module: torch.nn.Module, device: str) -> None:
    """Make parameters and buffers of a module tensors that live on a device, if it has memory of its own.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
        OutOfMemoryError: the device has no room.
    """
    name = canonical(device)
    if not has_memory(name):
        return
    moved_tensors: dict[int, torch.Tensor] = {}  # by identity: weights that are tied stay so
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for key, tensor in list(tensors.items()):
                if tensor is not None and _can_live(tensor):
                    if id(tensor) not in moved_tensors:
                        moved_tensors[id(tensor)] = _living(tensor, name)
                    setattr(owner, key, moved_tensors[id(tensor)])


def _can_live(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    return tensor.dtype in _DTYPES and tensor.numel() > 0


def _living(tensor: torch.Tensor, device: str) -> torch.Tensor:
    array = to_array(tensor.dtype)(tensor.detach())
    resident = Resident.of(Copies(None, {device: Copies(array).on(device)}), tensor.dtype, untold)
    return torch.nn.Parameter(resident, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else resident
