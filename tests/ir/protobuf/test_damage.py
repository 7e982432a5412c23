from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.ir import DataType, OperandType, Quantization
from nnadapter.ir.protobuf import from_bytes, load, save, to_bytes
from tests.ir.protobuf.saved_models import FLOAT, changed, network, only, opened, sealed
from tests.work import calls

_UNKNOWN = b"\xa2\x06\x01x"  # field 100, of one byte


def test_other_contents_are_refused():
    for contents in (b"", b"\x0a\x0f", b"\x08\x0a\x12\x07pytorch", b"x" * 1000):
        with pytest.raises(InvalidModelError, match="is not the start of an nnadapter model"):
            from_bytes(contents, {})


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_other_versions_are_refused(version):
    with pytest.raises(
        InvalidModelError, match=rf"format version {version}, and this nnadapter supports 1 to 1; update"
    ):
        from_bytes(sealed(b"something newer", version=version) + _UNKNOWN, {})


def test_unknown_fields_are_refused_by_number_and_place():
    inner = opened(to_bytes(network())[0])[0].model
    with pytest.raises(InvalidModelError, match="holds field 100 in a message File"):
        from_bytes(sealed(inner) + _UNKNOWN, {})
    with pytest.raises(InvalidModelError, match="holds field 100 in a message Model"):
        from_bytes(sealed(inner + _UNKNOWN), {})
    contents, files = changed(network(), lambda message: message.operands[2].MergeFromString(_UNKNOWN))
    with pytest.raises(InvalidModelError, match="holds field 100 in a message Operand"):
        from_bytes(contents, files)
    contents, files = changed(network(), lambda message: message.operations[0].attributes[0].MergeFromString(_UNKNOWN))
    with pytest.raises(InvalidModelError, match="holds field 100 in a message Attribute"):
        from_bytes(contents, files)


def test_every_shorter_file_is_refused():
    contents, data = to_bytes(network())
    for length in range(len(contents)):
        with pytest.raises(InvalidModelError):
            from_bytes(contents[:length], {"weights": data})


def test_every_changed_byte_is_detected():
    contents, data = to_bytes(network())
    for position in range(len(contents)):
        with pytest.raises(InvalidModelError):
            from_bytes(
                contents[:position] + bytes([contents[position] ^ 1]) + contents[position + 1 :], {"weights": data}
            )


def _reference(message):
    return message.operands[1].contents


def _set(name, value):
    return lambda message: setattr(_reference(message), name, value)


_FILES = {
    "missing": (_set("file", "other"), "needs data file 'other', but files has "),
    "offset": (_set("offset", 64), "do not match their digest|overlap"),
    "far offset": (_set("offset", 2**63), "expected a multiple of 64 and an end within its 512 bytes"),
    "odd offset": (_set("offset", 4), "432 bytes at 4 of 'weights', expected a multiple of 64"),
    "length": (_set("length", 2**63), "expected a multiple of 64 and an end within"),
    "short": (_set("length", 428), "do not match their digest"),
    "digest": (_set("sha256", bytes(32)), "432 bytes at 0 of 'weights' do not match their digest"),
    "no digest": (_set("sha256", b""), "do not match their digest"),
}


@pytest.mark.parametrize("case", _FILES)
def test_dangling_references_are_refused(case):
    change, message = _FILES[case]
    contents, files = changed(network(), change)
    with pytest.raises(ModelFileError, match=message):
        from_bytes(contents, files)


def _overlap(message):
    message.operands[2].contents.offset, message.operands[2].contents.length = 384, 64


_MODELS = {
    "overlap": (_overlap, "at 0 and 384 overlap"),
    "dtype": (
        lambda message: setattr(message.operands[0], "data_type", "float33"),
        "'x' has the DataType 'float33', ex",
    ),
    "layout": (
        lambda message: setattr(message.operands[0], "layout", ""),
        "'x' has the Layout '', expected one of NCHW",
    ),
    "lifetime": (lambda message: setattr(message.operands[0], "lifetime", "eternal"), "the Lifetime 'eternal'"),
    "other lifetime": (
        lambda message: setattr(message.operands[0], "lifetime", "temporary"),
        "'x' is in the list of model_inputs",
    ),
    "negative size": (
        lambda message: message.operands[0].dimensions.append(-1),
        "rank 5 and dimensions .* no size below 0",
    ),
    "rank": (lambda message: message.operands[0].dimensions.extend([1] * 61), "rank 65 .* expected rank 64 or less"),
    "size": (lambda message: message.operands[1].dimensions.append(2), r"432 bytes, expected 864"),
    "huge": (lambda message: message.operands[1].dimensions.extend([2**62] * 60), "432 bytes, expected "),
    "contents": (
        lambda message: message.operands[0].contents.CopyFrom(_reference(message)),
        "'x' is .* 432 bytes, expe",
    ),
    "no contents": (
        lambda message: message.operands[1].ClearField("contents"),
        "'filter' is constant and has no contents",
    ),
    "name": (lambda message: setattr(message.operands[0], "name", "bias"), "both called 'bias'"),
    "quantized": (lambda message: message.operands[0].quantization.scale.append(1.0), "quantized, expected an integer"),
    "operation": (
        lambda message: setattr(message.operations[0], "type", "CONV2D"),
        "unknown operation 'CONV2D'; did you",
    ),
    "input": (lambda message: message.operations[0].inputs.append(0), "CONV_2D: 4 inputs, expected 2 to 3"),
    "dangling": (lambda message: message.operations[0].inputs.__setitem__(0, 99), "reads operand 99"),
    "absent": (lambda message: message.operations[0].inputs.__setitem__(0, -1), "input 'input' is absent"),
    "far": (lambda message: message.operations[0].outputs.__setitem__(0, 2**32 - 1), "produces operand 4294967295"),
    "no output": (lambda message: message.operations[0].ClearField("outputs"), "0 outputs, expected 1"),
    "cycle": (
        lambda message: message.operations[0].inputs.__setitem__(0, 3),
        "reads operand 3, expected one defined earlier",
    ),
    "attribute": (lambda message: setattr(message.operations[0].attributes[0], "name", "stride"), "unknown attribute"),
    "no value": (lambda message: message.operations[0].attributes[0].ClearField("ints"), "'strides' has no value"),
    "kind": (
        lambda message: setattr(message.operations[0].attributes[0], "bool", True),
        "'strides' is True, expected a",
    ),
    "zero": (lambda message: message.operations[0].attributes[0].ints.values.__setitem__(0, 0), "CONV_2D"),
    "twice": (
        lambda message: message.operations[0].attributes.add(name="group", int=1),
        "attribute occurs twice",
    ),
    "model input": (lambda message: message.inputs.append(77), "model input 77 is no operand"),
    "model inputs": (lambda message: message.inputs.append(0), "expected no duplicates"),
    "model output": (lambda message: message.outputs.append(77), "model output 77 is no operand"),
    "no outputs": (
        lambda message: message.ClearField("outputs"),
        "has the lifetime model_output, expected it in",
    ),
    "nothing makes it": (lambda message: message.operations.__delitem__(6), "no operation produces operand"),
}


@pytest.mark.parametrize("case", _MODELS)
def test_inconsistent_models_are_refused(case):
    change, message = _MODELS[case]
    contents, files = changed(network(), change)
    with pytest.raises(InvalidModelError, match=message):
        from_bytes(contents, files)


@pytest.mark.parametrize(
    "quantization",
    [
        ((1.0,), (0, 0), None),
        ((1.0, 1.0), (0,), None),
        ((1.0,), (200,), None),
        ((-1.0,), (0,), None),
        ((1.0,), (0,), 9),
    ],
)
def test_wrong_quantization(quantization):
    scale, zero_point, axis = quantization
    type_ = OperandType(DataType.INT8, (2,), quantization=Quantization(scale=(1.0,), zero_point=(0,)))

    def change(message):
        message.operands[0].quantization.scale[:] = scale
        message.operands[0].quantization.zero_point[:] = zero_point
        if axis is not None:
            message.operands[0].quantization.axis = axis

    contents, files = changed(only(type_), change)
    with pytest.raises(InvalidModelError, match="quantized|scales|scale|zero point"):
        from_bytes(contents, files)


def test_invalid_bool_bytes_are_refused():
    model = only(None, np.array([True, False]))
    contents, data = to_bytes(only(None, np.array([7, 0], np.uint8)))
    _, message = opened(contents)
    message.operands[0].data_type = "bool"
    contents = sealed(message.SerializeToString())
    with pytest.raises(InvalidModelError, match="bytes that are not bools"):
        from_bytes(contents, {"weights": data})
    assert from_bytes(*_given(model)).operands[0].value.tolist() == [True, False]


def _given(model):
    contents, data = to_bytes(model)
    return contents, {"weights": data}


def test_digests_are_compared_unless_the_caller_trusts_the_file(tmp_path):
    save(only(None, np.zeros(3, np.float32)), tmp_path / "m")
    (data,) = tmp_path.glob("*.weights")
    data.write_bytes(np.ones(16, np.float32).tobytes())
    with pytest.raises(ModelFileError, match="12 bytes at 0 of .* do not match their digest"):
        load(tmp_path / "m")
    assert load(tmp_path / "m", check_contents=False).operands[0].value.tolist() == [1, 1, 1]


def _saved_with(tmp_path, name):
    contents, data = to_bytes(only(None, np.ones(3, np.float32)), name)
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "m").write_bytes(contents)
    (tmp_path / "secret").write_bytes(data)
    return folder / "m"


@pytest.mark.parametrize(
    "name", ["../secret", "/secret", "..", ".", "", "a/../../secret", "a\\secret", "C:secret", "a\0b"]
)
def test_data_files_outside_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ModelFileError, match="expected a plain file name in its folder"):
        load(_saved_with(tmp_path, name))


def test_links_outside_the_folder_are_refused(tmp_path):
    path = _saved_with(tmp_path, "link")
    path.with_name("link").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFileError, match="'link' is at .*secret', expected the model's folder"):
        load(path)
    path.with_name("link").unlink()
    path.with_name("link").symlink_to("link")
    with pytest.raises(ModelFileError, match="'link'"):
        load(path)


@pytest.mark.parametrize("name", ["gone", "m/m", "x" * 300])
def test_missing_data_files_are_refused(tmp_path, name):
    with pytest.raises(ModelFileError):
        load(_saved_with(tmp_path, name))


def test_special_files_are_not_opened(tmp_path):
    path = _saved_with(tmp_path, "pipe")
    os.mkfifo(path.with_name("pipe"))
    with pytest.raises(ModelFileError, match="'pipe' is not in"):
        load(path)
    with pytest.raises(ModelFileError, match="is not a file"):
        load(path.with_name("pipe"))


@pytest.mark.parametrize("path", ["gone", "."])
def test_unreadable_paths_are_refused(tmp_path, path):
    with pytest.raises(ModelFileError, match="give the path of a model"):
        load(tmp_path / path)


def test_files_larger_than_any_message_are_not_read(tmp_path):
    contents, _ = to_bytes(network())
    with (tmp_path / "m").open("wb") as file:
        file.write(contents)
        file.truncate(1 << 31)
    with pytest.raises(ModelFileError, match="has 2147483648 bytes, expected at most 2147483647"):
        load(tmp_path / "m")


def test_unwritable_paths_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be written: No such file or directory; give another path"):
        save(network(), tmp_path / "nowhere" / "m")


def test_unfinished_file_is_removed(tmp_path, monkeypatch):
    save(network(), tmp_path / "m")
    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(ModelFileError, match="No space left"):
        save(only(None, np.ones(3)), tmp_path / "m")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert len(load(tmp_path / "m").operations) == 7


@pytest.mark.parametrize("model", [replace(network(), inputs=()), only(OperandType(FLOAT, (2**64,)))])
def test_unserializable_models_are_refused(model, tmp_path):
    with pytest.raises(InvalidModelError):
        save(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_other_byte_orders_are_refused(monkeypatch):
    given_ = _given(only(None, np.ones(3, np.float32)))
    monkeypatch.setattr("sys.byteorder", "big")
    with pytest.raises(ModelFileError, match="little-endian and this machine is not"):
        from_bytes(*given_)


def test_many_references_to_one_block_are_read_once():
    big = np.zeros(1 << 22, np.uint8)
    contents, data = to_bytes(only(None, big))
    _, message = opened(contents)
    for position in range(3000):
        message.operands.add().CopyFrom(message.operands[0])
        message.operands[-1].name = f"copy {position}"
    contents = sealed(message.SerializeToString())
    counts = calls(lambda: from_bytes(contents, {"weights": data}))
    assert len(from_bytes(contents, {"weights": data}).operands) == 3001
    assert counts["openssl_sha256"] == 2  # once for the message, once for the block
