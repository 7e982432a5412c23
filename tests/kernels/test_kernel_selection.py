"""Kernel selection, compared with a brute force of eight pairwise comparisons."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.drivers import Kernel, KernelType, Target, Unsupported
from nnadapter.drivers.kernel import KernelOrigin
from nnadapter.errors import DriverWarning, InvalidOptionError
from nnadapter.ir import DataType, OperandType
from nnadapter.kernels import KernelTable, Request

IMAGE = OperandType(DataType.FLOAT32, (1, 2, 3, 4))
ROW = OperandType(DataType.INT8, (5,))
DTYPES = ("float32", "int8", "float16")

types = st.builds(
    KernelType,
    target=st.sampled_from(Target),
    precision=st.sets(st.sampled_from(DTYPES), min_size=1) | st.just(frozenset(DataType)),
    layout=st.sampled_from([None, "NCHW", "NHWC"]),
)
kernels = st.builds(
    Kernel,
    op_type=st.just("Op"),
    function=st.just(max),
    device=st.sampled_from(["npu", "npu:0"]),
    since_version=st.integers(1, 3),
    until_version=st.none() | st.integers(3, 4),
    inputs=st.lists(types, max_size=3).map(tuple),
    outputs=st.lists(types, max_size=2).map(tuple),
    attributes=st.sampled_from([None, {}, {"alpha": 1.0}]),
    priority=st.integers(0, 1),
    origin=st.sampled_from(KernelOrigin),
)
requests = st.builds(
    Request,
    domain=st.just(""),
    op_type=st.just("Op"),
    version=st.integers(1, 5),
    attributes=st.sampled_from([{}, {"alpha": 2.0}]),
    inputs=st.lists(st.sampled_from([IMAGE, ROW, None]), min_size=1, max_size=2).map(tuple),
    outputs=st.sampled_from([(IMAGE,), (ROW,)]),
)


def numbered(drawn):
    return [
        Kernel(**{name: getattr(kernel, name) for name in Kernel.__slots__ if name != "number"}, number=at)
        for at, kernel in enumerate(drawn)
    ]


def fits(kernel, request):
    if request.version < kernel.since_version or request.version > (kernel.until_version or 99):
        return False
    if kernel.attributes is not None and any(name not in kernel.attributes for name in request.attributes):
        return False
    if len(kernel.outputs) > len(request.outputs):
        return False
    pairs = [*zip(kernel.inputs, request.inputs), *zip(kernel.outputs, request.outputs)]  # noqa: B905
    return all(
        kernel_type.target != "device"
        and type_.dtype in kernel_type.precision
        and (kernel_type.layout != "NHWC" or type_.rank == 4)
        for kernel_type, type_ in pairs
        if type_ is not None
    )


def beats(challenger, other, request):
    """Return whether a kernel wins the eight comparisons of the documentation, in order."""

    def stated(kernel):
        wide = KernelType()
        rows = []
        for kernel_types, request_types in ((kernel.inputs, request.inputs), (kernel.outputs, request.outputs)):
            for at, type_ in enumerate(request_types):
                rows.append((kernel_types[at] if at < len(kernel_types) else wide, type_))
        return rows

    def turned(kernel):
        return [
            1 for kernel_type, type_ in stated(kernel) if kernel_type.layout == "NHWC" and type_ and type_.rank == 4
        ]

    def admitted(kernel):
        return sum(len(kernel_type.precision) for kernel_type, _ in stated(kernel))

    comparisons = [
        (other.priority, challenger.priority),
        (len(turned(challenger)), len(turned(other))),
        (admitted(challenger), admitted(other)),
        (len(other.inputs + other.outputs), len(challenger.inputs + challenger.outputs)),
        (":" not in challenger.device, ":" not in other.device),
        (other.since_version, challenger.since_version),
        (challenger.origin == "driver", other.origin == "driver"),
        (other.number, challenger.number),
    ]
    decided = next(pair for pair in comparisons if pair[0] != pair[1])
    return decided[0] < decided[1]


@given(st.lists(kernels, max_size=5), requests)
def test_chosen_kernel_beats_every_other_match(candidates, request):
    candidates = numbered(candidates)
    choice = KernelTable("npu", tuple(candidates)).choose(request)
    fitting = [kernel for kernel in candidates if fits(kernel, request)]
    best = [k for k in fitting if all(beats(k, other, request) for other in fitting if other is not k)]
    assert len(best) == bool(fitting)
    assert isinstance(choice, Unsupported) if not best else choice.kernel is best[0]


@given(st.lists(kernels, max_size=4), requests)
def test_the_order_of_the_table_does_not_matter(candidates, request):
    candidates = numbered(candidates)
    choices = [KernelTable("npu", permutation).choose(request) for permutation in itertools.permutations(candidates)]
    chosen = {getattr(getattr(choice, "kernel", None), "number", None) for choice in choices}
    assert len(chosen) == 1


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"inputs": (KernelType(precision="float16"),)}, "input 0 is float32, expected float16"),
        ({"inputs": (KernelType(target="device"),)}, "drivers pass host memory"),
        ({"outputs": (KernelType(precision="int8"),)}, "output 0 is float32"),
        ({"attributes": {}}, "does not know the attributes alpha"),
        ({"since_version": 7}, "versions 7 and later of the op, the node has 1"),
        ({"infer": lambda types, attributes: ROW}, "it infers int8"),
        ({"infer": lambda types, attributes: 3}, "its infer returned 3"),
        ({"infer": lambda types, attributes: types[9]}, "its infer failed: IndexError"),
    ],
)
def test_refusal_has_the_reason(details, reason):
    request = Request(domain="", op_type="Op", version=1, attributes={"alpha": 1}, inputs=(IMAGE,), outputs=(IMAGE,))
    choice = KernelTable("npu", (Kernel(op_type="Op", function=max, name="mine", **details),)).choose(request)
    assert isinstance(choice, Unsupported)
    assert reason in choice.detail and "kernel 'mine'" in choice.detail


@pytest.mark.parametrize(
    "details",
    [
        {"function": 3},
        {"infer": 3},
        {"op_type": ""},
        {"since_version": 0},
        {"since_version": 3, "until_version": 2},
        {"inputs": ("float32",)},
        {"priority": "high"},
    ],
)
def test_invalid_kernels(details):
    with pytest.raises(InvalidOptionError, match="expected"):
        Kernel(**{"op_type": "Op", "function": max, **details})


@pytest.mark.parametrize("details", [{"target": "moon"}, {"precision": "float31"}, {"layout": "CHW"}])
def test_invalid_types(details):
    with pytest.raises(InvalidOptionError, match="expected"):
        KernelType(**details)


def test_failing_infer_is_reported():
    request = Request(domain="", op_type="Op", version=1, attributes={}, inputs=(IMAGE,), outputs=(IMAGE,))
    faulty = Kernel(op_type="Op", function=max, name="faulty", priority=1, infer=lambda types, attributes: 3)
    other = Kernel(op_type="Op", function=max, name="other")
    with pytest.warns(DriverWarning, match="kernel 'faulty': its infer returned 3"):
        choice = KernelTable("npu", (faulty, other)).choose(request)
    assert choice.kernel is other
