"""Read text from a folder of images on two Ray nodes, with RapidOCR's three models, into Parquet files.

    python examples/batch_on_ray.py [FOLDER] [-d openvino:CPU] [-o texts] [--check]

Both nodes run on this machine. For a cluster, remove `local_nodes` and run the script as a Ray job. Each model is a
`nnadapter.ray.map_batches` over a dataset: detection over images, direction and recognition over the lines found.
RapidOCR's own code runs between them. A report of each job is saved next to the texts. With `--check`, plain RapidOCR
reads the images as well, and different lines are printed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import nnadapter as nna

PICTURES = Path(__file__).parent / "pictures"
TURNED = 0.9
"""Probability above which the direction model rotates a line."""


def main() -> None:
    """Read the images, write Parquet, and print the texts."""
    parser = argparse.ArgumentParser(description="Read text from pictures on two nodes.")
    parser.add_argument("folder", nargs="?", type=Path, default=PICTURES, help="pictures (default: those beside)")
    parser.add_argument("-d", "--device", default="fake_npu", help="before the CPU (default: fake_npu)")
    parser.add_argument("-o", "--out", type=Path, default=Path("texts"), help="folder for Parquet and reports")
    parser.add_argument("--check", action="store_true", help="compare with plain RapidOCR")
    chosen = parser.parse_args()
    pictures = sorted(str(path) for path in chosen.folder.glob("*.png"))
    with local_nodes():
        lines = read_all(pictures, chosen.device, chosen.out)
    for line in lines:
        print(f"{Path(line['path']).name:24} {line['score']:.3f}  {line['text']}")
    if chosen.check:
        print_differences(pictures, lines)


@contextmanager
def local_nodes() -> Iterator[None]:
    """Run two nodes on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # addresses of this machine only
    with tempfile.TemporaryDirectory(prefix="nna") as folder:
        os.environ["RAY_TMPDIR"] = folder
        import ray
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": 200 << 20})
        try:
            nodes.add_node(num_cpus=4, object_store_memory=200 << 20)
            ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
            yield
        finally:
            ray.shutdown()
            nodes.shutdown()


def read_all(pictures: list[str], device: str, out: Path) -> list[dict[str, Any]]:
    """Return the lines of all images, and write them to Parquet files."""
    import ray.data

    settings: dict[str, Any] = {"devices": device, "options": {"fallback": "allow"}, "columns": {"x": "input"}}
    paths = ray.data.from_items([{"path": path} for path in pictures]).repartition(2)
    results = nna.ray.map_batches(
        paths.map(for_detection), model("det"), batch_size=1, passthrough_columns=["path", "picture"], **settings
    )
    crops = results.flat_map(lines_of).materialize()
    turned = nna.ray.map_batches(
        crops.map(for_direction), model("cls"), batch_size=6, passthrough_columns=["path", "line", "crop"], **settings
    )
    read = nna.ray.map_batches(
        turned.map(for_recognition),
        model("rec"),
        batch_size=6,
        passthrough_columns=["path", "line", "ratio"],
        **settings,
    )
    texts = read.map(text_of).materialize()
    out.mkdir(parents=True, exist_ok=True)
    texts.write_parquet(str(out.absolute()))
    for name, job in (("detection", results), ("direction", turned), ("recognition", read)):
        report = nna.ray.report(job)
        report.save(out / f"{name}.html")
        print(f"{name}: {report.rows} rows, {report.rows_by_device}, compiled {report.compiles} time")
    return sorted(texts.take_all(), key=lambda row: (row["path"], row["line"]))


def reader() -> Any:
    """Return the RapidOCR of this process, for the steps before and after its models."""
    from rapidocr import RapidOCR

    if not hasattr(RapidOCR, "of_process"):  # Ray copies the globals of these functions
        ocr = RapidOCR(params={"Global.log_level": "error"})
        for load in ("_load_det_model", "_load_cls_model", "_load_rec_model"):  # newer versions load models lazily
            getattr(ocr, load, str)()
        RapidOCR.of_process = ocr  # assigned when complete: other threads may use it
    return RapidOCR.of_process


def model(part: str) -> str:
    """Return the file of one of RapidOCR's models."""
    import rapidocr

    reader()  # no download: the package includes the models
    return str(next(path for path in sorted(Path(rapidocr.__file__).parent.glob("models/*.onnx")) if part in path.name))


def for_detection(row: dict[str, Any]) -> dict[str, Any]:
    """Read an image, and prepare the input of the detection model."""
    import cv2

    picture, _ = reader().preprocess_img(cv2.imread(row["path"]))
    return {**row, "picture": picture, "input": reader().text_det.get_preprocess()(picture)[0].astype(np.float32)}


def lines_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per detected line, cropped from the image."""
    heat = next(value for name, value in row.items() if name not in ("path", "picture"))
    detection = reader().text_det
    boxes, _ = detection.postprocess_op(np.asarray(heat)[None], row["picture"].shape[:2])
    boxes = detection.sorted_boxes(np.asarray(boxes))
    crops = reader().crop_text_regions(row["picture"], boxes)
    return [{"path": row["path"], "line": number, "crop": crop} for number, crop in enumerate(crops)]


def for_direction(row: dict[str, Any]) -> dict[str, Any]:
    """Prepare the input of the direction model."""
    return {**row, "input": reader().text_cls.resize_norm_img(row["crop"]).astype(np.float32)}


def for_recognition(row: dict[str, Any]) -> dict[str, Any]:
    """Rotate a line if needed, and prepare the input of the recognition model."""
    odds = next(value for name, value in row.items() if name not in ("path", "line", "crop"))
    crop = np.rot90(row["crop"], 2) if odds[1] > TURNED else row["crop"]
    recognition = reader().text_rec
    _, height, width = recognition.rec_image_shape[:3]
    ratio = max(width / height, crop.shape[1] / crop.shape[0])
    picture = recognition.resize_norm_img(np.ascontiguousarray(crop), ratio)
    return {"path": row["path"], "line": row["line"], "ratio": ratio, "input": picture}


def text_of(row: dict[str, Any]) -> dict[str, Any]:
    """Decode the recognition model's output to text and score."""
    odds = next(value for name, value in row.items() if name not in ("path", "line", "ratio"))
    ratio = row["ratio"]
    lines, _ = reader().text_rec.postprocess_op(
        np.asarray(odds)[None], False, wh_ratio_list=[ratio], max_wh_ratio=ratio
    )
    text, score = lines[0]
    return {"path": row["path"], "line": int(row["line"]), "text": text, "score": float(score)}


def print_differences(pictures: list[str], lines: list[dict[str, Any]]) -> None:
    """Print lines that plain RapidOCR reads differently: it pads each line to the widest of its batch."""
    for path in pictures:
        texts = {line["text"] for line in lines if line["path"] == path}
        for text in reader()(path).txts or ():
            if text not in texts:
                print(f"plain RapidOCR: {Path(path).name:24} {text}")


if __name__ == "__main__":
    main()
