"""Cases of onnx's official suite that fail on devices [fake_npu, cpu], with reasons.

A test fails if an unlisted case fails, or a listed one passes, except for those of RANDOM.
"""

from __future__ import annotations

from collections.abc import Mapping

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""Kinds that run. `real` is left out: it downloads networks, or compares with the evaluator."""

RANDOM = "numbers are drawn at random, and the data hold those that numpy's generator drew"
EXCLUDED: Mapping[str, tuple[str, ...]] = {
    RANDOM: (
        "test_bernoulli",
        "test_bernoulli_double",
        "test_bernoulli_double_expanded",
        "test_bernoulli_expanded",
        "test_bernoulli_seed",
        "test_bernoulli_seed_expanded",
        "test_training_dropout",
        "test_training_dropout_default",
        "test_training_dropout_default_mask",
        "test_training_dropout_mask",
    ),
    "zeros are expected within 1e-7, ONNX Runtime transforms in float32 and gives 1e-5": (
        "test_dft",
        "test_dft_axis",
        "test_dft_inverse",
        "test_dft_irfft",
        "test_dft_rfft",
        "test_stft",
        "test_stft_with_window",
    ),
    "ONNX Runtime's kernel loads and refuses these inputs when it runs": (
        "test_convinteger_with_padding",
        "test_reduce_max_empty_set_bool",
    ),
    "ONNX divides by the scaled length, ONNX Runtime and PyTorch by the number of elements that there are": (
        "test_resize_downsample_scales_cubic_align_corners",
        "test_resize_downsample_scales_linear_align_corners",
    ),
    "ONNX Runtime and ONNX differ on what the indices count in where output_shape is given": (
        "test_maxunpool_export_with_output_shape",
    ),
    "Gradient, of the preview of training, has no implementation": (
        "test_gradient_of_add",
        "test_gradient_of_add_and_mul",
    ),
    "the result is right, but onnx's runner cannot compare a sequence that holds a scalar": ("test_loop16_seq_none",),
}
"""Reason -> names."""


def excluded() -> Mapping[str, str]:
    """Return reasons by name."""
    return {name: reason for reason, names in EXCLUDED.items() for name in names}
