"""The conversion process, with a substitute program."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import nnadapter as nna
from nnadapter import Options, limits
from nnadapter.errors import CacheWarning, ConversionWarning, InvalidModelError, MissingExtraError, ModelFileError
from nnadapter.paddle import conversion
from nnadapter.paddle.model_files import PaddleFiles, files_of
from tests.paddle_models.test_model_files import filled

REQUIRE_PADDLE = conversion.require_paddle
MADE = "open(f'{sys.argv[1]}/model.onnx', 'wb').write(open(f'{sys.argv[1]}/model.json', 'rb').read()[:4])"


def interpreter(version):
    """Return a substitute for `sys` of an interpreter of this version."""
    return SimpleNamespace(path=sys.path, executable=sys.executable, version_info=version)


@pytest.fixture
def model(tmp_path):
    return filled(tmp_path / "eine Datei 模型", "inference.json", "inference.pdiparams")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Check that the conversion leaves no temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(conversion.tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(conversion, "require_paddle", lambda what: {"paddle": "3", "paddle2onnx": "2"})
    yield
    assert list(temporary.iterdir()) == []


@pytest.fixture
def program(monkeypatch):
    return lambda code: monkeypatch.setattr(conversion, "_BEGIN", f"import json, os, sys; {code}")


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("os.abort()", "was killed by signal 6; save the model again"),
        ("os._exit(3)", "ended with exit code 3"),
        ("print('x')", "ended with exit code 0"),
        ("print('\\033[0;31m[ERROR]\\tFailed to convert PaddlePaddle model: too new.\\033[0m', flush=True); "
         "os._exit(1)", "paddle2onnx reports: too new; save"),
        ("print('ValueError: no room', flush=True); os._exit(1)", "paddle2onnx reports: ValueError: no room"),
        (f"{MADE}; print('The exported ONNX model is invalid\\nModel checker error log: a circle')", ": a circle;"),
        ("json.dump({'unsupported': ['svd']}, open(f'{sys.argv[1]}/told.json', 'w')); "
         "print('Due to the unsupported operators', flush=True); os.abort()", "cannot convert these operations: svd;"),
        ("json.dump({'wrong': 'output a is off'}, open(f'{sys.argv[1]}/told.json', 'w')); os._exit(1)",
         "differs from Paddle's results: output a is off"),
        ("json.dump({'error': 'ValueError: cut short'}, open(f'{sys.argv[1]}/told.json', 'w')); os._exit(1)",
         "ONNX: ValueError: cut short; save the model again"),
        ("open(f'{sys.argv[1]}/told.json', 'w').write('[1]'); os._exit(1)", "exit code 1"),
    ],
)  # fmt: skip
def test_conversion_failures_are_errors(model, program, code, match):
    program(code)
    with pytest.raises(InvalidModelError, match=match) as caught:
        conversion.convert(files_of(model))
    assert "\n" not in str(caught.value) and "inference.json' cannot be converted" in str(caught.value)


def test_full_disk_is_an_error(model, program):
    program("os._exit(74)")
    with pytest.raises(ModelFileError, match="no space left in '.*temporary'; free space there"):
        conversion.convert(files_of(model))


def test_doubtful_conversion_warns(model, program):
    program(f"json.dump({{'doubt': 'it draws'}}, open(f'{{sys.argv[1]}}/told.json', 'w')); {MADE}")
    with pytest.warns(ConversionWarning, match="inference.json' was converted, but may be wrong: it draws;"):
        assert conversion.convert(files_of(model)) == b'{"ba'


def test_hanging_process_is_abandoned(model, program, monkeypatch):
    monkeypatch.setattr(limits, "PADDLE_CONVERSION_S", 0.2)
    program("import time; time.sleep(100)")
    with pytest.raises(InvalidModelError, match=r"not converted to ONNX within 0\.2 s"):
        conversion.convert(files_of(model))


def test_an_interrupt_ends_the_process(model, program, interruptible):
    program("import time; time.sleep(100)")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        conversion.convert(files_of(model))
    assert time.perf_counter() - began < 50


def test_output_is_suppressed_and_nothing_is_installed(model, program, capfd):
    program(f"print('loud'); assert os.environ['POLYGRAPHY_AUTOINSTALL_DEPS'] == '0'; {MADE}")
    assert conversion.convert(files_of(model)) == b'{"ba'
    assert capfd.readouterr() == ("", "")


def test_read_only_folder_suffices(model, program):
    model.chmod(0o500)
    program(MADE)
    assert conversion.convert(files_of(model)) == b'{"ba'
    model.chmod(0o700)


def test_conversion_is_cached_by_contents(model, program, tmp_path):
    options = Options(cache_dir=tmp_path / "cache")
    program(MADE)
    first = conversion.as_onnx(model, options)
    program("os.abort()")
    assert conversion.as_onnx(model / "inference.json", options) == first
    copy = filled(tmp_path / "copy", "inference.json", "inference.pdiparams")
    assert conversion.as_onnx(copy, options) == first
    (copy / "inference.pdiparams").write_bytes(b"other")
    with pytest.raises(InvalidModelError):
        conversion.as_onnx(copy, options)


def test_concurrent_threads_start_one_conversion(model, program, tmp_path):
    counted = tmp_path / "counted"
    program(f"open({str(counted)!r}, 'a').write('x'); {MADE}")
    made = []
    options = Options(cache_dir=tmp_path / "cache")
    threads = [threading.Thread(target=lambda: made.append(conversion.as_onnx(model, options))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [b'{"ba'] * 3
    assert counted.read_text() == "x"


def test_disabled_cache_stores_nothing(model, program, tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))
    program(MADE)
    assert conversion.as_onnx(model, Options(cache_dir=False)) == b'{"ba'
    assert not (tmp_path / "cache").exists()


def test_damaged_entry_is_replaced(model, program, tmp_path):
    options = Options(cache_dir=tmp_path / "cache")
    program(MADE)
    conversion.as_onnx(model, options)
    (entry,) = (tmp_path / "cache").iterdir()
    contents = bytearray(entry.read_bytes())
    contents[contents.index(b'{"ba') + 1] ^= 1
    entry.write_bytes(contents)
    with pytest.warns(CacheWarning, match="created again"):
        assert conversion.as_onnx(model, options) == b'{"ba'


def test_model_changed_during_conversion_is_not_cached(model, program, tmp_path):
    program(f"{MADE}; open({str(model / 'inference.pdiparams')!r}, 'w').write('new')")
    with pytest.raises(ModelFileError, match="changed while it was converted"):
        conversion.as_onnx(model, Options(cache_dir=tmp_path / "cache"))


@pytest.mark.parametrize(("there", "versions", "match"), [
    (False, {}, "but paddlepaddle is not installed; run: pip install 'nnadapter\\[paddle\\]'"),
    (True, {"paddlepaddle": "2.6.1", "paddle2onnx": "2.0.1"}, "paddlepaddle has version 2.6.1, expected 3.0 or"),
])  # fmt: skip
def test_missing_packages_are_named(monkeypatch, there, versions, match):
    monkeypatch.setattr(conversion, "sys", interpreter((3, 11)))
    monkeypatch.setattr(conversion, "find_spec", lambda name: there or None)
    monkeypatch.setattr(conversion, "_version", lambda packages: versions.get(packages[0], "?"))
    with pytest.raises(MissingExtraError, match=match) as caught:
        REQUIRE_PADDLE("Paddle model 'm'")
    assert (caught.value.extra, caught.value.package) == ("paddle", "paddlepaddle")


@pytest.mark.parametrize(("python", "expected"), [
    ((3, 11), r"run: pip install 'nnadapter\[paddle\]'$"),
    ((3, 12), r"run: pip install 'paddlepaddle>=3.0' && pip install --no-deps 'paddle2onnx>=2.0.1'$"),
    ((3, 13), r"no wheel for Python 3.13 and later; run the model with Python 3.11 or 3.12, or compile it there"),
])  # fmt: skip
def test_a_session_without_paddle2onnx_reports_how_to_get_it(monkeypatch, model, python, expected):
    monkeypatch.setattr(conversion, "require_paddle", REQUIRE_PADDLE)
    monkeypatch.setattr(conversion, "sys", interpreter(python))
    monkeypatch.setattr(conversion, "find_spec", lambda name: None if name == "paddle2onnx" else name)
    monkeypatch.setattr(conversion, "_version", lambda packages: "?")
    missing = "needs the packages paddlepaddle and paddle2onnx, but paddle2onnx is not installed; "
    with pytest.raises(MissingExtraError, match=missing + ".*" + expected) as caught:
        nna.InferenceSession(model)
    assert (caught.value.extra, caught.value.package) == ("paddle", "paddle2onnx")


def test_structure_before_paddle_3_has_another_name(tmp_path, program):
    filled(tmp_path, "inference.pdmodel", "inference.pdiparams")
    program("open(f'{sys.argv[1]}/model.onnx', 'w').write(' '.join(sorted(os.listdir(sys.argv[1]))))")
    files = files_of(tmp_path)
    assert isinstance(files, PaddleFiles)
    assert conversion.convert(files) == b"model.onnx model.pdiparams model.pdmodel"
