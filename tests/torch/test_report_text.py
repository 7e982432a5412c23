from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter.torch import GraphFacts
from nnadapter.torch.compiled_report import CompiledFacts, to_text
from tests.models import HEAD, parse

WHOLE = f"{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ y = Relu(x) }}"
DECIDED = (
    f"{HEAD} g (float[2, 3] x) => (float[N] y) {{ a = Relu(x)  b = NonZero(a)  c = Cast <to = 1> (b)  y = Relu(c) }}"
)


@pytest.mark.parametrize(("text", "words"), [(WHOLE, "of their FLOPs"), (DECIDED, "of their known FLOPs")])
def test_flops_shares_refer_to_known_flops(text, words):
    graph = GraphFacts(
        kind="inference", operators=1, delegated=1, sessions=(nna.partition_report(parse(text), devices="fake_npu"),),
        pending_regions=0, fallback_operators=(), refused_operators=(), graph_break_reason="", graph_break_line="",
        unfrozen_weights=0, input_bytes=0, output_bytes=0, to_device_bytes=0, to_host_bytes=0,
        separate_memory_devices=(), device_memory_full=False,
    )  # fmt: skip
    assert f"100.0% {words} off the CPU" in to_text(CompiledFacts(name="net", graphs=(graph,)))
