"""Conversion between tensors and arrays; device-resident tensors and modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._guards import TracingContext
from torch.ops import aten
from torch.utils._pytree import tree_map_only

from nnadapter.drivers.selection import canonical
from nnadapter.drivers.tensor_copies import Copies
from nnadapter.engine.bound_steps import has_memory
from nnadapter.errors import ExecutionError
from nnadapter.torch.layouts import laid_out, order_of, strides_of_one, without_elements

Array = np.ndarray[Any, Any]


def to_array(dtype: torch.dtype) -> Callable[[Any], Array]:
    """Return a function that views a host tensor as an array."""
    return {torch.bfloat16: _bfloat16_array, torch.float16: _float16_array}.get(dtype, _array)


def to_tensor(dtype: torch.dtype) -> Callable[[Array], Any]:
    """Return a function that views an array as a tensor."""
    return _bfloat16_tensor if dtype is torch.bfloat16 else torch.from_numpy


def number_array(number: int) -> Array:
    """Return a size as an int64 array of rank 0."""
    return np.asarray(int(number), np.int64)


def _array(tensor: Any) -> Array:
    array: Array = tensor.numpy(force=True)  # detaches in the same call
    return array


def _float16_array(tensor: Any) -> Array:
    array: Array = tensor.to(torch.float16).numpy(force=True)
    return array


def _bfloat16_array(tensor: Any) -> Array:
    import ml_dtypes

    array: Array = tensor.detach().to(torch.bfloat16).view(torch.uint16).numpy(force=True)
    return array.view(ml_dtypes.bfloat16)


def _bfloat16_tensor(array: Array) -> Any:
    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)


Results = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]
"""Arrays from a session, inputs of the region -> tensors."""
_Place = tuple[int, int]


def results_of(inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], shown: Sequence[bool]) -> Results:
    """Return a function that converts a session's results to tensors; `shown` marks observable memory layouts.

    It raises ExecutionError if a data type or size differs from the graph. `Copies` stay `Copies`.
    """
    places = _places(inputs)
    likes = [node.meta["val"] for node in outputs]
    converts = [_converted(like, is_visible) for like, is_visible in zip(likes, shown, strict=True)]
    promised = [(_dtype(like.dtype), tuple(map(_static_size, like.shape))) for like in likes]
    dynamic_shapes = [
        (place, axis, source) for place, like in enumerate(likes) for axis, source in _dynamic_sizes(like, places)
    ]
    names = [node.name for node in outputs]

    def results(arrays: Sequence[Any], input_tensors: Sequence[Any]) -> tuple[Any, ...]:
        for array, (dtype, shape), name in zip(arrays, promised, names, strict=True):
            if array.dtype != dtype or (array.shape != shape and not _fits(array.shape, shape)):
                raise _differs(name, array, dtype, shape)
        for place, axis, (source, source_axis) in dynamic_shapes:
            if arrays[place].shape[axis] != input_tensors[source].shape[source_axis]:
                expected_shape = (
                    *arrays[place].shape[:axis],
                    input_tensors[source].shape[source_axis],
                    *arrays[place].shape[axis + 1 :],
                )
                raise _differs(names[place], arrays[place], promised[place][0], expected_shape)
        return tuple([convert(array) for convert, array in zip(converts, arrays, strict=True)])

    return results


def _places(inputs: Sequence[fx.Node]) -> Mapping[Any, _Place]:
    tensors = [(place, node.meta["val"]) for place, node in enumerate(inputs)]
    return {
        size.node.expr: (place, axis)
        for place, value in tensors
        if isinstance(value, torch.Tensor)
        for axis, size in enumerate(value.shape)
        if isinstance(size, torch.SymInt)
    }


def _dynamic_sizes(like: Any, places: Mapping[Any, _Place]) -> list[tuple[int, _Place]]:
    sizes = [(axis, size.node.expr) for axis, size in enumerate(like.shape) if isinstance(size, torch.SymInt)]
    return [(axis, places[expression]) for axis, expression in sizes if expression in places]


def _static_size(size: Any) -> int | None:
    return None if isinstance(size, torch.SymInt) else int(size)


def _dtype(dtype: torch.dtype) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if dtype is torch.bfloat16 else str(dtype).removeprefix("torch."))


def _fits(sizes: Sequence[int], promised: Sequence[int | None]) -> bool:
    if len(sizes) != len(promised):
        return False
    return all(
        promised_size is None or size == promised_size for size, promised_size in zip(sizes, promised, strict=True)
    )


def _differs(name: str, array: Any, dtype: Any, shape: Sequence[int | None]) -> ExecutionError:
    actual, expected = (
        f"{array.dtype}{list(array.shape)}",
        ", ".join("?" if size is None else str(size) for size in shape),
    )
    return ExecutionError(f"result {name!r} is {actual}, but PyTorch's graph declares {dtype}[{expected}]")


def _converted(like: Any, is_visible: bool) -> Callable[[Any], Any]:
    convert, arrange = to_tensor(like.dtype), _arrangement(like) if is_visible else None

    def converter(value: Any) -> Any:
        if type(value) is Copies:
            return value
        return convert(value) if arrange is None else arrange(convert(value))

    if not is_visible or not _may_be_empty(like):
        return converter
    empty = without_elements(like)
    return lambda value: converter(value) if prod(value.shape) else empty(value.shape)


def _arrangement(like: Any) -> Callable[[Any], Any] | None:
    order, strides = order_of(like), strides_of_one(like)
    if order is not None:
        return laid_out(order)
    return None if strides is None else partial(torch.as_strided, size=tuple(like.shape), stride=strides)


def _may_be_empty(like: Any) -> bool:
    return any(isinstance(size, torch.SymInt) or size == 0 for size in like.shape)


class ResidentStorage:
    """Contents of a tensor, shared with tensors detached from it."""

    __slots__ = ("copies", "is_pinned", "plain", "read")

    def __init__(self, copies: Copies | None, plain: torch.Tensor | None, read: Callable[[int], None]) -> None:
        self.copies = copies
        """Contents on devices or in an array; None once other code may have changed `plain`."""
        self.plain = plain
        self.is_pinned = False
        """True once the address of `plain` was handed out."""
        self.read = read

    def on_host(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a host tensor for reading only."""
        copies, plain = self.copies, self.plain
        if plain is None:
            assert copies is not None, "it lies somewhere"
            if not copies.has_array:
                self.read(copies.nbytes)
            self.plain = plain = to_tensor(dtype)(copies.own_array())
        return plain

    @property
    def is_seen(self) -> bool:
        return self.plain is not None and (self.is_pinned or _users(self.plain) > _UNSHARED_COUNT)

    def become(self, other: ResidentStorage) -> bool:
        """Replace the contents by another storage's, or return False if other code may see the old ones."""
        if other.copies is None or self.is_seen:
            return False
        self.copies, self.plain, self.read = other.copies, None, other.read
        return True


def _users(tensor: torch.Tensor) -> int:
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


_UNSHARED_COUNT = _users(torch.empty(1))


class Resident(torch.Tensor):  # type: ignore[misc]  # PyTorch's tensors have no types here
    """Device-resident tensor. Thread-safe to read."""

    resident_state: ResidentStorage
    __torch_function__ = torch._C._disabled_torch_function_impl  # sizes and data types need no dispatch

    @classmethod
    def of(cls, copies: Copies, dtype: torch.dtype, read: Callable[[int], None]) -> Resident:
        """Create a tensor; `read` is called with the bytes copied to the host."""
        return cls._holding(ResidentStorage(copies, None, read), copies.shape, dtype)

    @classmethod
    def _holding(cls, state: ResidentStorage, shape: Sequence[int], dtype: torch.dtype) -> Resident:
        resident: Resident = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        torch._C._set_throw_on_mutable_data_ptr(resident)
        resident.resident_state = state
        return resident

    @property
    def form(self) -> torch.Tensor:
        """Tensor without memory, for Dynamo and its guards."""
        form = self.__dict__.get("_form")
        if form is None:
            form = torch.empty(self.shape, dtype=self.dtype)
            form.untyped_storage().resize_(0)
            torch._C._set_throw_on_mutable_data_ptr(form)
            self._form = form
        return form

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["form"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Mapping[str, torch.Tensor], _: None, shape: Any, strides: Any) -> Resident:
        form = parts["form"]
        resident = cls._holding(ResidentStorage(None, form, ignore_bytes), shape, form.dtype)
        resident._form = form
        return resident

    @property
    def copies(self) -> Copies | None:
        """Contents on devices; None once code may have written on the host."""
        return self.resident_state.copies

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # Dynamo would capture it
    def plain(self) -> torch.Tensor:
        """Return the host tensor, which then holds the contents."""
        plain = self.resident_state.on_host(self.dtype)
        self.resident_state.copies = None
        return plain

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def numpy(self, *, force: bool = False) -> Array:
        if self.requires_grad and not force:
            raise RuntimeError("a tensor that requires gradients cannot become an array; use tensor.detach().numpy()")
        array: Array = self.plain().detach().numpy()  # the reference count of a separate tensor shows the reader
        return array

    def data_ptr(self) -> int:
        plain, self.resident_state.is_pinned = self.plain(), True
        address: int = plain.data_ptr()
        return address

    def untyped_storage(self) -> torch.UntypedStorage:
        if TracingContext.try_get() is not None:  # tracing compares storages without reading them
            return torch.Tensor.untyped_storage(self)
        plain, self.resident_state.is_pinned = self.plain(), True
        return plain.untyped_storage()

    def __dlpack__(self, **kwargs: Any) -> Any:
        if self.requires_grad:
            raise BufferError("a tensor that requires gradients is not exported; use tensor.detach()")
        return self.plain().detach().__dlpack__(**kwargs)

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, tensor: torch.Tensor) -> None:
        if tensor.shape != self.shape or tensor.dtype != self.dtype or tensor.device != self.device:
            raise RuntimeError(
                f"new data of a device-resident tensor must be {self.dtype}{list(self.shape)}, got "
                f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}; create a new one with nna.torch.to_device"
            )
        self.resident_state = (
            tensor.resident_state
            if type(tensor) is Resident
            else ResidentStorage(None, tensor.detach(), self.resident_state.read)
        )

    def tolist(self) -> Any:
        return self._read().tolist()

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copied: torch.Tensor = memo.setdefault(id(self), self._as_itself(self._read().clone()))
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._as_itself(self._read()).__reduce_ex__(protocol)

    def __repr__(self, **kwargs: Any) -> str:
        return repr(self._as_itself(self._read()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _read(self) -> torch.Tensor:
        return self.resident_state.on_host(self.dtype)

    def _as_itself(self, plain: torch.Tensor) -> torch.Tensor:
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(plain, self.requires_grad)
        return plain.detach().requires_grad_(self.requires_grad) if self.requires_grad else plain

    @classmethod
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def __torch_dispatch__(
        cls, function: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        resident_form = _RESIDENT_FORMS.get(function)
        result = None if resident_form is None else resident_form(*args, **kwargs)
        return _on_host(function, tuple(args), kwargs) if result is None else result


def ignore_bytes(nbytes: int) -> None:
    """Ignore a count of bytes."""


def _on_host(function: Any, args: Sequence[Any], kwargs: Any) -> Any:
    written, named = _keeping(function)
    if written is None:
        raise RuntimeError(f"{function} changes metadata of a device-resident tensor; use its clone()")
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
        if tensor.resident_state.is_seen:  # a result aliases it, whatever the schema declares
            tensor.resident_state.copies = None
    return (
        tree_map_only(torch.Tensor, lambda result: residents_by_id.get(id(result), result), results)
        if residents_by_id
        else results
    )


class _All:
    def __contains__(self, item: object) -> bool:
        return True


@cache
def _keeping(function: Any) -> tuple[Any, Any]:
    """Return positions and names of arguments that are written or aliased; None if metadata changes."""
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
    if not type(target) is type(source) is Resident:
        return None
    is_one = target.shape == source.shape and target.dtype == source.dtype
    return target if is_one and target.resident_state.become(source.resident_state) else None


def _full_like(tensor: Resident, value: Any = 0, **kwargs: Any) -> Resident | None:
    plain = {"dtype": tensor.dtype, "layout": torch.strided, "device": tensor.device, "pin_memory": False}
    copies = tensor.copies
    if copies is None or any(kwargs.get(name) not in (None, value) for name, value in plain.items()):
        return None
    if kwargs.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    return Resident.of(Copies(np.full(copies.shape, value, copies.dtype)), tensor.dtype, tensor.resident_state.read)


_RESIDENT_FORMS: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _detached,
    aten.copy_.default: _copied,
    aten.zeros_like.default: _full_like,
    aten.full_like.default: _full_like,
}
"""Operator -> function that computes without values on the host, or returns None if it needs them."""


SESSION_DTYPES = frozenset(
    (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    )
)


def move(module: torch.nn.Module, device: str) -> None:
    """Make parameters and buffers device-resident if possible; see `nnadapter.torch.to_device`."""
    name = canonical(device)
    if not has_memory(name):
        return
    moved_tensors: dict[int, torch.Tensor] = {}  # by id, so that tied weights stay tied
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for key, tensor in list(tensors.items()):
                if tensor is not None and _can_be_resident(tensor):
                    if id(tensor) not in moved_tensors:
                        moved_tensors[id(tensor)] = _as_resident(tensor, name)
                    setattr(owner, key, moved_tensors[id(tensor)])


def _can_be_resident(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    return tensor.dtype in SESSION_DTYPES and tensor.numel() > 0


def _as_resident(tensor: torch.Tensor, device: str) -> torch.Tensor:
    array = to_array(tensor.dtype)(tensor.detach())
    resident = Resident.of(Copies(None, {device: Copies(array).on(device)}), tensor.dtype, ignore_bytes)
    return torch.nn.Parameter(resident, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else resident
