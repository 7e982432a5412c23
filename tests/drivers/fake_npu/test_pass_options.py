"""Options dump_passes and check_passes."""

import numpy as np
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.drivers.fake_npu import PASSES, Arithmetic, evaluate, evaluator, lower
from nnadapter.errors import InvalidOptionError, PassError
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import check_numbers, run_passes
from tests.drivers.fake_npu.harness import context, run_model
from tests.ir.passes.program import Program, feeds, random


def model(computed=False):
    program = Program(x=(1, 3, 6, 7))
    filter_ = program("MUL", random(1, 6, 3, 3, 3), 0.25) if computed else random(1, 6, 3, 3, 3)
    y = program("CONV_2D", program("PAD", program.x, pads=(0, 0, 1, 1, 0, 0, 1, 1)), filter_)
    statistics = [np.abs(random(seed, 6)) + 1 for seed in range(4)]
    y = program("MUL", y, program("EXP", random(2, 6, 1, 1)))
    return program.finish(program("RELU", program("BATCH_NORMALIZATION", y, *statistics)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_models_run_without_passes(dtype):
    program = Program(dtype, x=(2, 3, 4))
    y = program("SOFTMAX", program("MAT_MUL", program.x, np.asarray(random(1, 4, 5), dtype)), axis=2)
    built = program.finish(y)
    (got,), (expected,) = evaluate(built, feeds(built)), by_definition(built, feeds(built))
    np.testing.assert_allclose(got, expected, rtol=5e-3 if dtype == "float16" else 1e-5)


def test_unsupported_models_are_not_run():
    program = Program("float64", x=(2,))
    built = program.finish(program("SOFTMAX", program.x, axis=0))
    assert evaluate(built, feeds(built)) is None


@pytest.mark.parametrize("half", [False, True])
def test_constants_are_folded_with_the_device_s_own_kernels(half):
    program = Program(x=(1, 2, 2, 2))
    weight = program("EXP", random(1, 2, 2, 1, 1))
    built = program.finish(program("CONV_2D", program.x, weight))
    lowered = lower(built, Arithmetic(half_precision=half))
    assert "unary" not in {instruction.kernel for instruction in lowered.graph.instructions}
    assert len(lowered.runs_as(built)) == 2
    assert evaluator(Arithmetic(half_precision=half)) is evaluator(Arithmetic(half_precision=half))


def test_computed_filter_is_constant_after_folding():
    lowered = lower(model(computed=True))
    kernels = [instruction.kernel for instruction in lowered.graph.instructions]
    assert len([kernel for kernel in kernels if kernel != "transpose"]) == 1


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_dumping_and_checking_passes_change_no_result(tmp_path, precision):
    plain = run_model_of(precision=precision)
    watched = run_model_of(precision=precision, dump_passes=str(tmp_path), check_passes=True)
    np.testing.assert_array_equal(plain, watched)
    (folder,) = tmp_path.iterdir()
    assert folder.name == "model-0000"
    assert sorted(file.name for file in folder.iterdir()) == [
        "00-given.txt",
        *(f"{number:02}-{name}.txt" for number, name in enumerate(PASSES, 1)),
    ]


def run_model_of(**options):
    (result,) = run_model(model(), feeds(model()), **options)
    return result


def test_every_model_gets_a_folder(tmp_path):
    opened = context(dump_passes=str(tmp_path / "dumps"))
    for size in (2, 3):
        program = Program(x=(size, 2))
        assert opened.admit(program.finish(program("RELU", program.x))).verdict
    assert sorted(folder.name for folder in (tmp_path / "dumps").iterdir()) == ["model-0000", "model-0001"]


def test_invalid_folder_is_reported_at_once(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InvalidOptionError, match="dump_passes"):
        context(dump_passes=str(tmp_path / "taken"))


def test_device_passes_preserve_results():
    run_passes(model(), PASSES, check_numbers(evaluate))


def test_a_wrong_pass_is_refused_with_its_name(monkeypatch):
    def observe(name, model_before, model_after):
        raise PassError(f"pass {name!r} changed output 'y'", name=name)

    monkeypatch.setattr("nnadapter.drivers.fake_npu.compiling.observer", lambda *_, **__: observe)
    program = Program(x=(2, 2))
    with pytest.raises(PassError, match="'remove_dead' changed"):
        context(check_passes=True).admit(program.finish(program("RELU", program.x)))


def test_options_reach_the_device_of_a_session(tmp_path):
    small = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    device = ("fake_npu", {"dump_passes": str(tmp_path), "check_passes": True})
    with nna.InferenceSession(small, devices=device, options=nna.Options(fallback="forbid")) as session:
        assert session.run(None, {"x": np.array([1, -2], np.float32)})[0].tolist() == [-1, 2]
    assert list(tmp_path.glob("model-*/00-given.txt"))
