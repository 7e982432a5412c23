"""Send requests to `nnadapter serve` with a standard client of the Open Inference Protocol.

    nnadapter serve model.onnx -d fake_npu &
    python examples/client.py http://127.0.0.1:8000/v2/models/model

The client is Triton's (`pip install "tritonclient[http]"`) and does not depend on nnadapter. It reads the model's
metadata, sends seeded random numbers as binary tensors, and prints results and times.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import triton_to_np_dtype

OPEN = 1
"""Size of dynamic dimensions."""


def main() -> None:
    """Send requests, and print results."""
    parser = argparse.ArgumentParser(description="Ask a model behind the Open Inference Protocol.")
    parser.add_argument("address", help="of the model, as `nnadapter serve` prints it")
    parser.add_argument("--size", type=int, default=OPEN, help="of dimensions that the model leaves open (default: 1)")
    parser.add_argument("--repeat", type=int, default=10, help="requests (default: 10)")
    chosen = parser.parse_args()
    host, _, name = chosen.address.removeprefix("http://").partition("/v2/models/")
    with triton.InferenceServerClient(host) as client:
        metadata = client.get_model_metadata(name)
        inputs = [make_input(row, chosen.size) for row in metadata["inputs"]]
        durations = []
        for _ in range(chosen.repeat):
            began = perf_counter()
            result = client.infer(name, inputs, timeout=10_000_000)  # microseconds; the server stops the run
            durations.append(perf_counter() - began)
        for row in metadata["outputs"]:
            array = result.as_numpy(row["name"])
            print(f"{row['name']}: {row['datatype']}{list(array.shape)}, first {array.reshape(-1)[:4].tolist()}")
        print(f"{chosen.repeat} requests, median {np.median(durations) * 1e3:.2f} ms")


def make_input(row: dict[str, Any], size: int) -> Any:
    """Return an input with seeded random numbers."""
    shape = [size if dimension < 0 else dimension for dimension in row["shape"]]
    numbers = np.random.default_rng(0).random(shape)
    tensor = triton.InferInput(row["name"], shape, row["datatype"])
    tensor.set_data_from_numpy(numbers.astype(triton_to_np_dtype(row["datatype"])))
    return tensor


if __name__ == "__main__":
    main()
