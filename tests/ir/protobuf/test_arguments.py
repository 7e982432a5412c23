from __future__ import annotations

from pathlib import Path

import pytest

from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.ir.protobuf import from_bytes, load, save, to_bytes
from tests.ir.protobuf.saved_models import network

CONTENTS, DATA = to_bytes(network())


@pytest.mark.parametrize("model", ["x", 3, None])
def test_objects_other_than_models_are_refused(model, tmp_path):
    for use in (lambda: save(model, tmp_path / "m"), lambda: to_bytes(model)):
        with pytest.raises(InvalidModelError, match=f"ModelBuilder.finish, got {type(model).__name__}$"):
            use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [".", "", "/", "..", "folder"])
def test_folders_are_not_written_to(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(ModelFileError, match="is a folder; give the path of a file in it$"):
        save(network(), path)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("path", [None, 3, ["m"]])
def test_paths_of_wrong_type_are_refused(path):
    for use in (lambda: save(network(), path), lambda: load(path)):
        with pytest.raises(ModelFileError, match="expected a str or a path$"):
            use()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CONTENTS, DATA), "data files are bytes, expected a mapping like {'weights': data}$"),
        ((CONTENTS, None), "data files are NoneType, expected a mapping like"),
        ((CONTENTS, {"weights": "text"}), "data file 'weights' is str, expected bytes$"),
        (((CONTENTS, DATA), {}), "expected the bytes of a model, got tuple; pass the first result of `to_bytes`$"),
        ((None, {}), "expected the bytes of a model, got NoneType"),
        ((CONTENTS, {3: DATA}), r"but files has \['3'\]; add it$"),
    ],
)
def test_bytes_of_wrong_type_are_refused(arguments, message):
    with pytest.raises(InvalidModelError, match=message):
        from_bytes(*arguments)


def test_duplicated_contents_are_refused(tmp_path):
    save(network(), tmp_path / "m")
    contents = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(contents * 2)
    with pytest.raises(
        InvalidModelError, match=f"has {2 * len(contents)} bytes, but {len(contents)} without duplicate fields"
    ):
        load(tmp_path / "m")
    with pytest.raises(InvalidModelError, match="without duplicate fields"):
        from_bytes(CONTENTS + CONTENTS[:17], {"weights": DATA})
