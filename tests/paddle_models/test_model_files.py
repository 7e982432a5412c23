from __future__ import annotations

import os

import pytest

from nnadapter import limits
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.paddle.model_files import files_of

STRUCTURE = b'{"base_code":{"magic":"pir","version":4},"program":{}}'
WITH_PARAMETERS = STRUCTURE[:-1] + b',"ops":[{"#":"p","A":[]}]}'


def filled(folder, *names, structure=WITH_PARAMETERS):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(structure if name.endswith(".json") else b"x")
    return folder


@pytest.mark.parametrize(
    ("names", "structure", "parameters"),
    [
        (["inference.json", "inference.pdiparams", "config.json.txt"], "inference.json", "inference.pdiparams"),
        (["inference.pdmodel", "inference.pdiparams", "a.info"], "inference.pdmodel", "inference.pdiparams"),
        (["inference.json", "inference.pdmodel", "inference.pdiparams"], "inference.json", "inference.pdiparams"),
        (["model.json", "model.pdiparams", "other.pdmodel", "other.pdiparams"], "model.json", "model.pdiparams"),
        (["__model__", "__params__"], "__model__", "__params__"),
        (["net.pdmodel", "net.pdiparams"], "net.pdmodel", "net.pdiparams"),
    ],
)  # fmt: skip
def test_model_of_a_folder_is_found(tmp_path, names, structure, parameters):
    result = files_of(filled(tmp_path, *names))
    assert (result.structure.name, result.parameters.name) == (structure, parameters)
    assert result.is_old == (not structure.endswith(".json"))


def test_unrelated_json_in_a_folder_is_ignored(tmp_path):
    filled(tmp_path, "net.json", "net.pdiparams")
    (tmp_path / "config.json").write_text("{}")
    assert files_of(tmp_path).structure.name == "net.json"


def test_model_without_parameters_has_no_parameter_file(tmp_path):
    assert files_of(filled(tmp_path, "inference.json", structure=STRUCTURE)).parameters is None


def test_parameter_file_may_have_another_name(tmp_path):
    filled(tmp_path, "a.json", "b.pdiparams", "c.pdiparams", "c.pdmodel")
    assert files_of(tmp_path / "a.json", tmp_path / "b.pdiparams").parameters.name == "b.pdiparams"
    assert files_of(tmp_path / "c.pdiparams").structure.name == "c.pdmodel"


@pytest.mark.parametrize(
    ("names", "asked", "error", "match"),
    [
        ([], "", ModelFileError, "holds no Paddle model"),
        (["a.pdmodel", "b.json"], "", ModelFileError, "several Paddle models: a.pdmodel, b.json"),
        (["inference.json"], "", ModelFileError, "expected 'inference.pdiparams' next to it"),
        (["inference.pdmodel"], "", ModelFileError, "expected 'inference.pdiparams' next to it"),
        (["inference.pdiparams"], "inference.pdiparams", ModelFileError, "its structure is not next to it"),
        ([], "no.json", ModelFileError, "does not exist"),
    ],
)
def test_missing_files_are_errors(tmp_path, names, asked, error, match):
    filled(tmp_path, *names)
    with pytest.raises(error, match=match):
        files_of(tmp_path / asked if asked else tmp_path)


def test_hostile_files_are_refused(tmp_path, monkeypatch):
    filled(tmp_path, "inference.json")
    os.mkfifo(tmp_path / "inference.pdiparams")
    with pytest.raises(ModelFileError, match="not a regular file"):
        files_of(tmp_path)
    (tmp_path / "inference.pdiparams").unlink()
    (tmp_path / "inference.pdiparams").touch()
    with pytest.raises(InvalidModelError, match="is empty"):
        files_of(tmp_path)
    monkeypatch.setattr(limits, "PADDLE_STRUCTURE_BYTES", 10)
    with pytest.raises(InvalidModelError, match="expected at most 10"):
        files_of(tmp_path)
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(InvalidModelError, match="expected at most|is not a Paddle model"):
        files_of(tmp_path / "other.json")
