"""Request bodies: accepted forms, and errors for all others. No server runs."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest

from nnadapter.errors import DeadlineExceededError, ExecutionError, InvalidInputError
from nnadapter.ray.serving import (
    HEADER_LENGTH,
    Batcher,
    HttpError,
    InferenceRequest,
    QueuedRequest,
    Route,
    http_error,
    model_metadata,
    protocol,
    read_request,
    route_of,
    written,
)
from tests.ray.test_rows import NO_AXIS, OPEN, SIZES, signature

MANY = signature(
    {"f": ("float64", ("N",)), "i": ("int64", ("N",)), "b": ("bool", ("N",)), "h": ("float16", ("N",))},
    {"y": ("float64", ("N",))},
)


def body(model_inputs, **more):
    return json.dumps({"inputs": model_inputs, **more}).encode()


def tensor(data, shape, datatype="FP32", name="x", **more):
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


def read(contents, model=OPEN, header=None):
    return read_request(contents, header, model)


def test_json_becomes_arrays_of_input_types():
    rows = [tensor([1, 2.5], [2], "FP64", "f"), tensor([2**62, -1], [2], "INT64", "i")]
    rows += [tensor([True, False], [2], "BOOL", "b"), tensor([0.5, 1], [2], "FP16", "h")]
    asked = read(body(rows, id="me", parameters={"timeout": 1500}, outputs=[{"name": "y"}]), MANY)
    assert asked.id == "me" and asked.timeout == pytest.approx(0.0015) and not asked.binary
    assert {name: (array.dtype.name, array.tolist()) for name, array in asked.feed.items()} == {
        "f": ("float64", [1.0, 2.5]),
        "i": ("int64", [2**62, -1]),
        "b": ("bool", [True, False]),
        "h": ("float16", [0.5, 1.0]),
    }


def test_nested_and_flat_data_are_equivalent():
    flat, nested = (read(body([tensor(data, [2, 3])])) for data in ([1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]))
    np.testing.assert_array_equal(flat.feed["x"], nested.feed["x"])


def test_binary_tensors_follow_the_json():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    said = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}
    text = body([said], parameters={"binary_data_output": True})
    asked = read(text + array.tobytes(), header=str(len(text)))
    np.testing.assert_array_equal(asked.feed["x"], array)
    assert asked.binary == {"y", "s"}
    contents, headers = written("m", "", {"y": array, "s": array[:, 0]}, frozenset({"y"}), "cpu")
    length = int(headers[HEADER_LENGTH])
    outputs = json.loads(contents[:length])["outputs"]
    assert outputs[1]["data"] == [0.0, 3.0] and contents[length:] == array.tobytes()


DEEP = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
GOOD = tensor([1, 2, 3], [1, 3])
BINARY = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
WRONG = {
    "no JSON": (b"{", None, "not JSON"),
    "nothing": (b"", None, "not JSON"),
    "deep": (DEEP, None, "not JSON|list of 1 to 256|an object"),
    "bytes": (b"\xff\xfe", None, "not JSON"),
    "NaN": (b'{"inputs": [NaN]}', None, "NaN is not a JSON number"),
    "a list": (b"[]", None, "the request must be an object"),
    "no inputs": (b"{}", None, "'inputs' must be a list of 1 to 256"),
    "too many": (body([GOOD] * 257), None, "'inputs' must be a list of 1 to 256"),
    "a name": (body([{**GOOD, "name": "X1"}]), None, "no input 'X1'"),
    "no name": (body([{"shape": [1]}]), None, "no input 'None'"),
    "twice": (body([GOOD, GOOD]), None, "'x' appears twice"),
    "a datatype": (body([{**GOOD, "datatype": "INT64"}]), None, "'x' takes datatype 'FP32', got 'INT64'"),
    "a shape": (body([{**GOOD, "shape": [1, -3]}]), None, "list of integers"),
    "a count": (body([{**GOOD, "shape": [2, 3]}]), None, "needs 6 numbers, got 3"),
    "a huge shape": (body([{**GOOD, "shape": [2**30, 2**30, 2**30]}]), None, "too large"),
    "a huge shape of nothing": (body([tensor([], [0, 2**30, 2**30, 2**30])]), None, "too large"),
    "too many for its data": (body([{**GOOD, "shape": [2**20, 2**20]}]), None, "numbers, got 3"),
    "nested deep": (body([{**GOOD, "data": json.loads("[" * 70 + "1" + "]" * 70)}]), None, "lists differ in length"),
    "true among numbers": (body([{**GOOD, "data": [1, True, 3]}]), None, "has values that are not FP32"),
    "too large for its type": (body([{**GOOD, "data": [1, 1e39, 3]}]), None, "has values that are not FP32"),
    "infinite": (body([GOOD]).replace(b"[1, 2, 3]", b"[1, 1e999, 3]"), None, "has values that are not FP32"),
    "ragged": (body([{**GOOD, "data": [[1, 2], [3]]}]), None, "lists differ in length"),
    "a text": (body([{**GOOD, "data": ["1", "2", "3"]}]), None, "has values that are not FP32"),
    "null": (body([{**GOOD, "data": [1, None, 3]}]), None, "has values that are not FP32"),
    "true": (body([{**GOOD, "data": [True, True, True]}]), None, "has values that are not FP32"),
    "no data": (body([{"name": "x", "shape": [1, 3], "datatype": "FP32"}]), None, "has no data"),
    "an output": (body([GOOD], outputs=[{"name": "q"}]), None, "no output 'q'"),
    "an output twice": (body([GOOD], outputs=[{"name": "y"}] * 2), None, "requested twice"),
    "classes": (body([GOOD], outputs=[{"name": "y", "parameters": {"classification": 3}}]), None, "only tensors"),
    "a flag": (body([GOOD], parameters={"binary_data_output": 1}), None, "must be true or false"),
    "a timeout": (body([GOOD], parameters={"timeout": "soon"}), None, "number of microseconds"),
    "an id": (body([GOOD], id=["me"]), None, "id must be a string"),
    "a header": (body([GOOD]), "12x", "Inference-Header-Content-Length is '12x'"),
    "a long header": (body([GOOD]), "999999", "Inference-Header-Content-Length is '999999'"),
    "bytes behind": (body([GOOD]) + b"1234", str(len(body([GOOD]))), "4 bytes follow the last tensor"),
    "too few bytes": (body([BINARY]) + b"12", str(len(body([BINARY]))), "binary_data_size is 12, and 2 remain"),
    "both": (body([{**BINARY, "data": [1]}]), None, "both data and binary_data_size"),
    "shared": (body([{**GOOD, "parameters": {"shared_memory_region": "r"}}]), None, "no shared memory"),
}


@pytest.mark.parametrize("name", WRONG)
def test_malformed_requests_are_one_line_errors(name):
    contents, header, text = WRONG[name]
    with pytest.raises(HttpError, match=text) as caught:
        read(contents, header=header)
    assert caught.value.status == 400 and "\n" not in caught.value.message and len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("datatype", "name", "data"), [("INT64", "i", [1.5]), ("INT64", "i", [2**63]), ("BOOL", "b", [1])]
)
def test_numbers_outside_their_type_are_refused(datatype, name, data):
    with pytest.raises(HttpError, match=f"has values that are not {datatype}"):
        read(body([tensor(data, [1], datatype, name)]), MANY)


def test_long_texts_need_little_memory():
    texts = ["a" * 100_000, *[""] * 2_000]
    tracemalloc.start()
    with pytest.raises(HttpError, match="has values that are not FP32"):
        read(body([tensor(texts, [2_001, 1])]))
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_a_deadline_may_be_any_number():
    assert read(body([GOOD], parameters={"timeout": 10**400})).timeout == pytest.approx(2**62 / 1e6)
    assert read(body([GOOD], parameters={"timeout": 0})).timeout is None


def test_long_json_is_refused_before_parsing(monkeypatch):
    monkeypatch.setattr(protocol, "JSON_BYTES", 50)
    with pytest.raises(HttpError, match="send tensors as binary data") as caught:
        read(body([GOOD]))
    assert caught.value.status == 413


def test_errors_have_their_status():
    results = [
        http_error(error).status for error in (InvalidInputError("x"), DeadlineExceededError("x"), KeyError("x"))
    ]
    assert results == [400, 504, 500]
    assert http_error(ExecutionError("the device")).status == 503
    assert "secret" not in http_error(KeyError("secret")).message


def test_nonfinite_results_are_readable():
    contents, _ = written("m", "", {"y": np.array([math.nan, math.inf], np.float32)}, frozenset(), "cpu")
    data = json.loads(contents)["outputs"][0]["data"]
    assert math.isnan(data[0]) and data[1] == math.inf


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("GET", "/v2", Route.SERVER),
        ("GET", "/v2/", Route.SERVER),
        ("HEAD", "/v2/health/ready", Route.READY),
        ("GET", "/v2/models/m", Route.MODEL),
        ("GET", "/v2/models/m/versions/1/ready", Route.READY),
        ("POST", "/v2/models/m/infer", Route.INFER),
        ("GET", "/v2/models/m/report.html", Route.REPORT_PAGE),
        ("GET", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/m/versions/2", 404),
        ("GET", "/v1/models/m", 404),
        ("GET", "/v2/models/m/infer/more", 404),
        ("GET", "/v2/models/m/infer", 405),
        ("POST", "/v2", 405),
    ],
)
def test_routes_of_addresses(method, path, answer):
    if isinstance(answer, Route):
        assert route_of(method, path, "m") is answer
        return
    with pytest.raises(HttpError) as caught:
        route_of(method, path, "m")
    assert caught.value.status == answer


def test_metadata_has_minus_one_for_dynamic_sizes():
    assert model_metadata("m", OPEN)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]


def waiting(array, outputs=("y", "s"), until=None):
    return QueuedRequest(
        InferenceRequest(id="", feed={"x": array}, outputs=outputs, binary=frozenset(), timeout=None), until
    )


def sums(outputs, feed, rows, seconds):
    assert len(feed["x"]) == rows
    return [{"y": feed["x"] * 2, "s": feed["x"].sum(-1)}[name] for name in outputs], "cpu"


def test_requests_of_equal_shapes_are_batched():
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=(rows, length)).astype(np.float32) for rows, length in ((1, 3), (2, 5), (3, 3), (1, 5), (9, 3))
    ]
    asked = [waiting(array) for array in arrays]
    batcher = Batcher(SIZES, most=8, compiled_rows=None)
    groups = list(batcher.groups(asked))
    assert sorted(groups) == [[0, 2], [1, 3], [4]]
    for group in groups:
        for position, given in zip(group, batcher.run([asked[each] for each in group], sums), strict=True):
            np.testing.assert_array_equal(given.results["y"], arrays[position] * 2)
            np.testing.assert_array_equal(given.results["s"], arrays[position].sum(-1))


def test_incompatible_requests_run_separately():
    asked = [waiting(np.ones((1, 3), np.float32)), waiting(np.ones((1, 3), np.float32), ("y",))]
    assert list(Batcher(OPEN, 8, None).groups(asked)) == [[0], [1]]
    assert list(Batcher(NO_AXIS, 8, None).groups(asked[:1] * 2)) == [[0], [1]]


def test_faulty_request_does_not_fail_others():
    def run(outputs, feed, rows, seconds):
        if (feed["x"] < 0).any():
            raise InvalidInputError("it is below 0")
        return sums(outputs, feed, rows, seconds)

    asked = [waiting(np.full((1, 3), number, np.float32)) for number in (1, -1, 2)]
    given = Batcher(OPEN, 8, None).run(asked, run)
    assert [each.error is None for each in given] == [True, False, True]
    np.testing.assert_array_equal(given[2].results["y"], np.full((1, 3), 4, np.float32))


def test_expired_requests_are_not_run():
    observed = []

    def run(outputs, feed, rows, seconds):
        observed.append((rows, seconds))
        return sums(outputs, feed, rows, seconds)

    one = np.ones((1, 3), np.float32)
    given = Batcher(OPEN, 8, None).run([waiting(one, until=0.0), waiting(one), waiting(one, until=1e12)], run)
    assert isinstance(given[0].error, DeadlineExceededError) and given[1].error is given[2].error is None
    assert observed == [(2, None)]  # a run has a deadline if all its requests have one
