"""Two custom kernels: for an op that the device does not support, and for an op of a private domain.

    python examples/custom_kernel.py

fake_npu supports all of the adapter IR, but nothing of ai.onnx.ml. Without kernels, Normalizer would run on the CPU,
and no device could run acme.audio's Companding.
"""

from __future__ import annotations

import numpy as np
from onnx import parser

import nnadapter as nna

MODEL = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3, "acme.audio" : 1]>
    speech (float[N, 8] samples) => (float[N, 8] probabilities) {
        compressed = acme.audio.Companding <mu = 255.0> (samples)
        positive = Abs(compressed)
        shares = ai.onnx.ml.Normalizer <norm = "L1"> (positive)
        probabilities = Sqrt(shares)
    }"""
)
FLOAT = nna.KernelType(precision="float32")


@nna.kernel("fake_npu", "Companding", domain="acme.audio", inputs=[FLOAT], infer=lambda types, _: types[0])
def companding(samples: np.ndarray, *, mu: float = 255.0) -> np.ndarray:
    """Compress amplitudes. Source: ITU-T G.711, mu-law."""
    return (np.sign(samples) * np.log1p(mu * np.abs(samples)) / np.log1p(mu)).astype(np.float32)


@nna.kernel("fake_npu", "Normalizer", domain="ai.onnx.ml", inputs=[FLOAT], infer=lambda types, _: types[0])
def normalizer(values: np.ndarray, *, norm: str) -> np.ndarray:
    """Divide each row by its norm."""
    size = {"L1": np.abs(values).sum(-1), "L2": np.sqrt((values**2).sum(-1)), "MAX": values.max(-1)}[norm]
    return values / size[..., None]


def main() -> None:
    """Run the model, and print devices and results."""
    samples = np.random.default_rng(0).uniform(-1, 1, (2, 8)).astype(np.float32)
    with nna.InferenceSession(MODEL, devices=["fake_npu", "cpu"]) as session:
        (probabilities,) = session.run(None, {"samples": samples})
        report = session.report()
    expected = np.abs(np.log1p(255.0 * np.abs(samples)))
    expected = np.sqrt(expected / expected.sum(-1, keepdims=True))
    for node in report.nodes:
        print(f"{node.op_type:<12}{node.device:<10}{node.runs_as}")
    print(f"{len(report.segments)} segment, {report.coverage.nodes:.0%} of nodes off the CPU")
    print(f"largest difference {np.abs(probabilities - expected).max():.1e}")


if __name__ == "__main__":
    main()
