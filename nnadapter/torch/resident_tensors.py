"""Device-resident tensors, copied to the host only when read there, and modules with such parameters.

A tensor that lies on a device: made on the host only where somebody reads it there.

What a forward graph keeps for the backward graph is one, and where a module's parameters live on a device
(`resident_tensors.py`), so are they, their gradients and the state of optimizers. To PyTorch it is a tensor with
sizes, a data
type and no memory. An operator that stays in PyTorch gets a plain tensor, made when it is first read:

1. What only reads it, by the operator's schema, leaves it on the device, too: both hold the same numbers.
2. What may write to it or look at its memory (a view, numpy, DLPack) gets the plain tensor, and from then on it is that
   one: what lay on the device is let go of, so that nothing can be out of date.
3. What is copied into it from another tensor on a device, as a graph's new weights, takes the place of both, unless
   somebody still has a view of its memory: then it is copied into that.

Code in C++ that asks for memory and calls no operator gets an error that says what to do.

A module whose parameters live on a device, as those of `module.to("cuda")` do.

PyTorch's own tensors lie in the host's memory, where anybody may read them through an address, and no one is told. So
what a graph computes for them has to be there after each call. Where a person says that parameters live on a device,
they are tensors of another kind, which tell when they are read; so are their gradients, and the state that optimizers
make like them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._guards import TracingContext
from torch.utils._pytree import tree_map_only

from nnadapter.drivers.selection import canonical
from nnadapter.drivers.tensor_copies import Copies
from nnadapter.engine.bound_steps import has_memory
from nnadapter.torch.arrays import Array, to_array, to_tensor


class ResidentStorage:
    """What a tensor holds; shared by those that PyTorch detached from it."""

    __slots__ = ("copies", "is_pinned", "plain", "read")

    def __init__(self, copies: Copies | None, plain: torch.Tensor | None, read: Callable[[int], None]) -> None:
        self.copies = copies
        """On devices, or nowhere but in an array; None since somebody may have written to `plain`."""
        self.plain = plain
        """The same on the host, once somebody has read it."""
        self.is_pinned = False
        """Somebody knows the address of `plain`."""
        self.read = read
        """Told how many bytes are copied to the host, when they are."""

    def on_host(self, dtype: torch.dtype) -> torch.Tensor:
        """The tensor on the host, not to be written to."""
        copies, plain = self.copies, self.plain
        if plain is None:
            assert copies is not None, "it lies somewhere"
            if not copies.has_array:
                self.read(copies.nbytes)
            self.plain = plain = to_tensor(dtype)(copies.own_array())
        return plain

    @property
    def is_seen(self) -> bool:
        """Whether somebody may look at the memory of `plain`."""
        return self.plain is not None and (self.is_pinned or _users(self.plain) > _UNSHARED_COUNT)

    def become(self, other: ResidentStorage) -> bool:
        """Hold what another one does; False where that would leave somebody with what it was."""
        if other.copies is None or self.is_seen:
            return False
        self.copies, self.plain, self.read = other.copies, None, other.read
        return True


def _users(tensor: torch.Tensor) -> int:
    """How many refer to a tensor's memory."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


_UNSHARED_COUNT = _users(torch.empty(1))
"""How many refer to memory that one tensor has for itself."""


class Resident(torch.Tensor):  # type: ignore[misc]  # PyTorch's tensors have no types here
    """A tensor on a device; safe to read from several threads."""

    resident_state: ResidentStorage
    __torch_function__ = torch._C._disabled_torch_function_impl  # sizes and data types are read as they are

    @classmethod
    def of(cls, copies: Copies, dtype: torch.dtype, read: Callable[[int], None]) -> Resident:
        """Return the tensor that lies on devices.

        Args:
            copies: it.
            dtype: its data type, which arrays may have under another name.
            read: told how many bytes are copied to the host, when they are.
        """
        return cls._holding(ResidentStorage(copies, None, read), copies.shape, dtype)

    @classmethod
    def _holding(cls, state: ResidentStorage, shape: Sequence[int], dtype: torch.dtype) -> Resident:
        resident: Resident = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        torch._C._set_throw_on_mutable_data_ptr(resident)
        resident.resident_state = state
        return resident

    @property
    def form(self) -> torch.Tensor:
        """A tensor of PyTorch like it, but without numbers: what Dynamo and its guards look at."""
        form = self.__dict__.get("_form")
        if form is None:
            form = torch.empty(self.shape, dtype=self.dtype)
            form.untyped_storage().resize_(0)
            torch._C._set_throw_on_mutable_data_ptr(form)
            self._form = form
        return form

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """How Dynamo takes it apart."""
        return ["form"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Mapping[str, torch.Tensor], _: None, shape: Any, strides: Any) -> Resident:
        """How Dynamo puts together what it computes forms with."""
        form = parts["form"]
        resident = cls._holding(ResidentStorage(None, form, untold), shape, form.dtype)
        resident._form = form
        return resident

    @property
    def copies(self) -> Copies | None:
        """Where it lies; None since somebody may have written to it."""
        return self.resident_state.copies

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # Dynamo captures what runs in its graphs
    def plain(self) -> torch.Tensor:
        """The tensor on the host, which the caller may write to: from then on it is that one."""
        plain = self.resident_state.on_host(self.dtype)
        self.resident_state.copies = None
        return plain

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def numpy(self, *, force: bool = False) -> Array:
        """See `torch.Tensor.numpy`."""
        if self.requires_grad and not force:
            raise RuntimeError("a tensor that requires gradients is no array; use tensor.detach().numpy()")
        array: Array = self.plain().detach().numpy()  # of a tensor of its own, which counts as one who looks
        return array

    def data_ptr(self) -> int:
        """See `torch.Tensor.data_ptr`."""
        plain, self.resident_state.is_pinned = self.plain(), True
        address: int = plain.data_ptr()
        return address

    def untyped_storage(self) -> torch.UntypedStorage:
        """See `torch.Tensor.untyped_storage`."""
        if TracingContext.try_get() is not None:  # who captures asks whose memory is whose, and reads none
            return torch.Tensor.untyped_storage(self)
        plain, self.resident_state.is_pinned = self.plain(), True
        return plain.untyped_storage()

    def __dlpack__(self, **kwargs: Any) -> Any:
        """See `torch.Tensor.__dlpack__`."""
        if self.requires_grad:
            raise BufferError("a tensor that requires gradients is not exported; use tensor.detach()")
        return self.plain().detach().__dlpack__(**kwargs)

    @property
    def data(self) -> torch.Tensor:
        """See `torch.Tensor.data`; what is set has the same sizes and data type."""
        return self.detach()

    @data.setter
    def data(self, tensor: torch.Tensor) -> None:
        if tensor.shape != self.shape or tensor.dtype != self.dtype or tensor.device != self.device:
            raise RuntimeError(
                f"new data of a tensor on a device is {self.dtype}{list(self.shape)} as it is, got "
                f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}; make a new one by nna.torch.to_device"
            )
        self.resident_state = (
            tensor.resident_state
            if type(tensor) is Resident
            else ResidentStorage(None, tensor.detach(), self.resident_state.read)
        )

    def tolist(self) -> Any:
        """See `torch.Tensor.tolist`."""
        return self._read().tolist()

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        """A copy of the tensor, on the host."""
        copied: torch.Tensor = memo.setdefault(id(self), self._as_itself(self._read().clone()))
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is saved to a file is the tensor."""
        return self._as_itself(self._read()).__reduce_ex__(protocol)

    def __repr__(self, **kwargs: Any) -> str:
        """As the tensor."""
        return repr(self._as_itself(self._read()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _read(self) -> torch.Tensor:
        """The tensor on the host, not to be written to."""
        return self.resident_state.on_host(self.dtype)

    def _as_itself(self, plain: torch.Tensor) -> torch.Tensor:
        """A plain tensor as what this is: a parameter, or one that requires gradients."""
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(plain, self.requires_grad)
        return plain.detach().requires_grad_(self.requires_grad) if self.requires_grad else plain

    @classmethod
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def __torch_dispatch__(
        cls, function: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator of PyTorch on what is read here."""
        kwargs = kwargs or {}
        lying = _LYING.get(function)
        result = None if lying is None else lying(*args, **kwargs)
        return _on_host(function, tuple(args), kwargs) if result is None else result


def untold(nbytes: int) -> None:
    """Nobody counts."""


def _on_host(function: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Run an operator on plain tensors."""
    written, named = _keeping(function)
    if written is None:
        raise RuntimeError(f"{function} changes the form of a tensor that lies on a device; use its clone()")
    read_residents: list[Resident] = []
    residents_by_id: dict[int, Resident] = {}

    def plain(tensor: Resident) -> torch.Tensor:
        plain_tensor = tensor.plain()
        residents_by_id[id(plain_tensor)] = tensor
        return plain_tensor

    def read(tensor: Resident) -> torch.Tensor:
        read_residents.append(tensor)
        return tensor._read()

    args = [tree_map_only(Resident, plain if place in written else read, arg) for place, arg in enumerate(args)]
    kwargs = {name: tree_map_only(Resident, plain if name in named else read, value) for name, value in kwargs.items()}
    results = function(*args, **kwargs)
    for tensor in read_residents:
        if tensor.resident_state.is_seen:  # a result looks at it, whatever the schema says
            tensor.resident_state.copies = None
    return (
        tree_map_only(torch.Tensor, lambda result: residents_by_id.get(id(result), result), results)
        if residents_by_id
        else results
    )


class _All:
    """Contains everything."""

    def __contains__(self, item: object) -> bool:
        return True


@functools.cache
def _keeping(function: Any) -> tuple[Any, Any]:
    """Which arguments an operator may write to or give views of, by place and by name; None if it changes forms."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return _All(), _All()
    if torch.Tag.inplace_view in function.tags:
        return None, None
    arguments = [
        (place, argument.name) for place, argument in enumerate(schema.arguments) if argument.alias_info is not None
    ]
    return frozenset(place for place, _ in arguments), frozenset(name for _, name in arguments)


def _detached(tensor: Resident) -> Resident:
    return Resident._holding(tensor.resident_state, tensor.shape, tensor.dtype)


def _copied(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """What is copied into a tensor takes its place, where both lie on devices; None where that cannot be."""
    if not type(target) is type(source) is Resident:
        return None
    is_one = target.shape == source.shape and target.dtype == source.dtype
    return target if is_one and target.resident_state.become(source.resident_state) else None


def _full_like(tensor: Resident, value: Any = 0, **kwargs: Any) -> Resident | None:
    """The state of an optimizer, at its start."""
    plain = {"dtype": tensor.dtype, "layout": torch.strided, "device": tensor.device, "pin_memory": False}
    copies = tensor.copies
    if copies is None or any(kwargs.get(name) not in (None, value) for name, value in plain.items()):
        return None
    if kwargs.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    return Resident.of(Copies(np.full(copies.shape, value, copies.dtype)), tensor.dtype, tensor.resident_state.read)


_LYING: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.detach.default: _detached,
    torch.ops.aten.copy_.default: _copied,
    torch.ops.aten.zeros_like.default: _full_like,
    torch.ops.aten.full_like.default: _full_like,
}
"""Operators that need no numbers; None where they do."""


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
