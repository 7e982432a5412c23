"""Index of the benchmarks: question, approximate duration, and smallest form of each."""

from __future__ import annotations

import shlex
from typing import NamedTuple


class Benchmark(NamedTuple):
    """A module of this package with `add_options` and `run`."""

    question: str
    """The question that it answers."""
    duration: str
    """About how long it takes by default, on two cores."""
    quick_options: str
    """Options of the smallest form, which `--quick` selects."""
    needs: str = ""
    """A package that may not be installed."""

    @property
    def quick(self) -> list[str]:
        """The options of the smallest form."""
        return shlex.split(self.quick_options)


BENCHMARKS = {
    "overhead": Benchmark("What does a run cost besides the computation?", "seconds", "--rounds 5"),
    "startup": Benchmark(
        "How long from the start of a process to its first result, and how much memory?",
        "ten minutes",
        "--models cls --ways fake_npu --rounds 1",
    ),
    "shapes": Benchmark(
        "What does a new input shape cost, and is memory flat over many?", "a minute", "--layers 1 --device null"
    ),
    "static_shapes": Benchmark(
        "What does a new shape cost on devices that compile for static shapes?", "two minutes", "--lengths 6 --rounds 1"
    ),
    "decode": Benchmark(
        "How many tokens per second does a model with a growing cache give, or how much memory does it need?",
        "a minute",
        "--layers 1 --width 64 --steps 2 --rounds 1 -d null",
    ),
    "segments": Benchmark(
        "What does passing values from segment to segment cost?",
        "some minutes",
        "--pairs cpu,fake_npu --segments 3 --rounds 1",
    ),
    "stream": Benchmark(
        "How close do streams and parallel branches come to the bound?", "a minute", "--items 2 --rounds 1 --runs 1"
    ),
    "side_by_side": Benchmark(
        "Do two checkouts give the same results, plans, refusals and reports?",
        "hours",
        ". --networks 'composition 1' --devices fake_npu --policies priority",
    ),
    "plan_memory": Benchmark(
        "Is the count of `max_plan_bytes` what plans really hold?",
        "some minutes",
        "--cases fake_npu --networks residual --plans 1",
        "openvino",
    ),
    "report": Benchmark("How does the time of a report grow with the model?", "half a minute", "--rounds 1 --most 100"),
    "partitioning": Benchmark(
        "How good and how fast is the partitioner, beside exhaustive search and its peers?",
        "some minutes",
        "growth --most 1000",
    ),
    "policies": Benchmark(
        "How far are policies from the better of ONNX Runtime and OpenVINO?",
        "some minutes",
        "--only digits --repetitions 1 --turns 1 --policies measured",
        "openvino",
    ),
    "what_if": Benchmark("Does what-if predict the effect of supporting an op?", "a minute", "cls"),
    "fake_npu": Benchmark(
        "How fast is fake_npu beside ONNX Runtime, and where does its time go?",
        "two minutes",
        "--profile cls --rounds 1",
    ),
    "ocr": Benchmark("How fast does RapidOCR read pictures, cold and warm?", "two minutes", "--pictures 1 --passes 1"),
    "quantized": Benchmark(
        "How fast and how exact are quantized networks?", "some minutes", "mobilenet --rounds 1", "openvino"
    ),
    "precision": Benchmark(
        "How fast and how good are trained networks in lower precision, beside OpenVINO, ONNX Runtime and NNCF?",
        "half an hour",
        "rapidocr-cls --samples 4 --calibration 2 --rounds 1 --turn 0 --ways 'OpenVINO float32,ONNX Runtime min-max'",
        "openvino",
    ),
    "tuning": Benchmark(
        "How far from its lower bound is the precision that tuning chooses, and what does the search cost?",
        "five minutes",
        "--networks 1 --samples 2",
    ),
    "written_models": Benchmark(
        "Do models of ONNX Runtime's quantizers and optimizers run on a device, with the right results?",
        "some minutes",
        "'LSTM, dynamic'",
    ),
    "accuracy": Benchmark(
        "Do the accuracy checks give false alarms, and what do they cost?",
        "some minutes",
        "--device fake_npu --only cls",
    ),
    "xla": Benchmark("How fast is a session on XLA beside JAX?", "a minute", "--length 8 --rounds 1", "jax"),
    "pytorch": Benchmark(
        "Which PyTorch models run through torch.compile, and how much of each on the device?",
        "some minutes",
        "perceptron",
        "torch",
    ),
    "pytorch_speed": Benchmark(
        "How fast is torch.compile on openvino beside OpenVINO alone?", "a minute", "calls --rounds 1", "torch"
    ),
    "pytorch_training": Benchmark(
        "Is training through torch.compile right, and how fast?", "some minutes", "'graph net' --steps 1", "torch"
    ),
    "paddle_networks": Benchmark(
        "Which Paddle networks convert, and with Paddle's results?", "some minutes", "half", "paddle"
    ),
    "ray_batch": Benchmark(
        "What does a job on Ray cost, and does it survive a node?",
        "a quarter of an hour",
        "--parts overhead --rounds 1 --seconds 1",
        "ray",
    ),
    "ray_serve": Benchmark(
        "Does a server answer many callers right, and how fast?", "a minute", "--requests 50 --callers 2", "ray"
    ),
    "chaos": Benchmark("Are all results right among random faults?", "half a minute", "--count 50"),
    "fault_matrix": Benchmark(
        "Does every fault in every phase behave as documented?",
        "a quarter of an hour",
        "--form 'in process' --device fake_npu --kind fail --phase run",
    ),
    "isolation": Benchmark(
        "What does a device in a process of its own cost, and what remains after it dies?",
        "some minutes",
        "sessions --count 5",
    ),
    "hostile": Benchmark(
        "Do hostile models, files and feeds end in an error, in little time and memory?",
        "some minutes",
        "--ways report --only 'a cycle'",
    ),
}
"""Name -> benchmark, in the order of the list."""
