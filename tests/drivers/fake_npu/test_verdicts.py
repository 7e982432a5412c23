from nnadapter.drivers import SUPPORTED, Reason
from nnadapter.ir import DataType, Model, ModelBuilder, OperandType, Quantization, QuantizedType
from tests.drivers.fake_npu.harness import context


def relu(*dimensions: int, dtype: DataType = DataType.FLOAT32) -> Model:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(dtype, dimensions))
    (result,) = builder.add_operation("RELU", (x,))
    return builder.finish([result])


def test_verdicts_hold_for_other_sizes() -> None:
    verdicts = context()
    assert [verdicts.supported(relu(size, 3)) for size in (2, 5, 2)] == [[SUPPORTED]] * 3


def test_empty_tensors_are_refused_despite_cached_verdicts() -> None:
    verdicts = context()
    assert verdicts.supported(relu(2, 3)) == [SUPPORTED]
    (refusal,) = verdicts.supported(relu(0, 3))
    assert refusal.reason is Reason.UNSUPPORTED_TYPE
    assert verdicts.supported(relu(2, 3)) == [SUPPORTED]


def test_refusals_are_repeated_at_other_sizes() -> None:
    verdicts = context(switched_off=("RELU",))
    for size in (2, 3):
        (refusal,) = verdicts.supported(relu(size))
        assert refusal.reason is Reason.SWITCHED_OFF


def test_other_structures_get_separate_verdicts() -> None:
    verdicts = context()
    assert verdicts.supported(relu(2, 3)) == [SUPPORTED]
    (refusal,) = verdicts.supported(relu(2, 3, dtype=DataType.BFLOAT16))
    assert refusal.reason is Reason.UNSUPPORTED_DTYPE


def test_quantized_mean_is_supported_in_floats_and_refused_in_integers() -> None:
    quantization = Quantization(scale=(0.1,), zero_point=(3,))
    results = []
    for result in (QuantizedType(DataType.INT8, quantization), None):
        builder = ModelBuilder()
        x = builder.add_input("x", OperandType(DataType.INT8, (2, 3), quantization=quantization))
        outputs = builder.add_operation("REDUCE_MEAN", (x,), {"axes": (1,)}, quantized=[result])
        (verdict,) = context().supported(builder.finish(outputs))
        results.append(verdict if verdict else verdict.reason)
    assert results == [SUPPORTED, Reason.UNSUPPORTED_DTYPE]
