"""Read text from a folder of pictures on two nodes of Ray's, with RapidOCR's three models, into Parquet.

    python examples/batch_on_ray.py [FOLDER] [-d openvino:CPU] [-o texts] [--check]

Both nodes run on this machine; on machines of your own, leave `local_nodes` away and run it as a job of your cluster.
Each model is a `nnadapter.ray.map_batches` over a dataset: detection over pictures, direction and recognition over the
lines that were found. What stands between them is RapidOCR's own. A report of each job is written beside the texts.
`--check` reads the pictures with plain RapidOCR as well, and prints what that reads otherwise.
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
"""The direction model is believed from here on that a line stands on its head."""


def main() -> None:
    """Read, write, and say what ran where."""
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
    """Two nodes on this machine, and their end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # addresses of this machine alone
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
    """The lines of all pictures; they are in Parquet files, too."""
    import ray.data

    settings: dict[str, Any] = {"devices": device, "options": {"fallback": "allow"}, "columns": {"x": "input"}}
    paths = ray.data.from_items([{"path": path} for path in pictures]).repartition(2)
    found = nna.ray.map_batches(
        paths.map(for_detection), model("det"), batch_size=1, passthrough_columns=["path", "picture"], **settings
    )
    crops = found.flat_map(lines_of).materialize()
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
    for name, job in (("detection", found), ("direction", turned), ("recognition", read)):
        report = nna.ray.report(job)
        report.save(out / f"{name}.html")
        print(f"{name}: {report.rows} rows, {report.rows_by_device}, compiled {report.compiles} time")
    return sorted(texts.take_all(), key=lambda row: (row["path"], row["line"]))


def reader() -> Any:
    """RapidOCR, once in a process: what it does before and behind its models is used."""
    from rapidocr import RapidOCR

    if not hasattr(RapidOCR, "of_process"):  # Ray gives each of these functions globals of its own
        made = RapidOCR(params={"Global.log_level": "error"})
        for load in ("_load_det_model", "_load_cls_model", "_load_rec_model"):  # newer ones load when they first run
            getattr(made, load, str)()
        RapidOCR.of_process = made  # now that all is there: other threads take it
    return RapidOCR.of_process


def model(part: str) -> str:
    """The file of one of its models."""
    import rapidocr

    reader()  # downloads nothing: the package brings them
    return str(next(path for path in sorted(Path(rapidocr.__file__).parent.glob("models/*.onnx")) if part in path.name))


def for_detection(row: dict[str, Any]) -> dict[str, Any]:
    """A path -> the picture, and what the detection model takes of it."""
    import cv2

    picture, _ = reader().preprocess_img(cv2.imread(row["path"]))
    return {**row, "picture": picture, "input": reader().text_det.get_preprocess()(picture)[0].astype(np.float32)}


def lines_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What the detection model gave -> a row per line, cut out of the picture."""
    heat = next(value for name, value in row.items() if name not in ("path", "picture"))
    detection = reader().text_det
    boxes, _ = detection.postprocess_op(np.asarray(heat)[None], row["picture"].shape[:2])
    boxes = detection.sorted_boxes(np.asarray(boxes))
    crops = reader().crop_text_regions(row["picture"], boxes)
    return [{"path": row["path"], "line": number, "crop": crop} for number, crop in enumerate(crops)]


def for_direction(row: dict[str, Any]) -> dict[str, Any]:
    """A line as the direction model takes it."""
    return {**row, "input": reader().text_cls.resize_norm_img(row["crop"]).astype(np.float32)}


def for_recognition(row: dict[str, Any]) -> dict[str, Any]:
    """A line, on its feet, as the recognition model takes it."""
    odds = next(value for name, value in row.items() if name not in ("path", "line", "crop"))
    crop = np.rot90(row["crop"], 2) if odds[1] > TURNED else row["crop"]
    recognition = reader().text_rec
    _, height, width = recognition.rec_image_shape[:3]
    ratio = max(width / height, crop.shape[1] / crop.shape[0])
    picture = recognition.resize_norm_img(np.ascontiguousarray(crop), ratio)
    return {"path": row["path"], "line": row["line"], "ratio": ratio, "input": picture}


def text_of(row: dict[str, Any]) -> dict[str, Any]:
    """What the recognition model gave -> text and score."""
    odds = next(value for name, value in row.items() if name not in ("path", "line", "ratio"))
    ratio = row["ratio"]
    lines, _ = reader().text_rec.postprocess_op(
        np.asarray(odds)[None], False, wh_ratio_list=[ratio], max_wh_ratio=ratio
    )
    text, score = lines[0]
    return {"path": row["path"], "line": int(row["line"]), "text": text, "score": float(score)}


def print_differences(pictures: list[str], lines: list[dict[str, Any]]) -> None:
    """Lines that plain RapidOCR reads otherwise: it fills each up to the widest of its batch, so that some differ."""
    for path in pictures:
        found = {line["text"] for line in lines if line["path"] == path}
        for text in reader()(path).txts or ():
            if text not in found:
                print(f"plain RapidOCR: {Path(path).name:24} {text}")


if __name__ == "__main__":
    main()
