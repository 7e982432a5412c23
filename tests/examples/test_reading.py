"""Unmodified RapidOCR on nnadapter sessions: texts equal ONNX Runtime's, whatever the device refuses.

Two pictures always run, one with operations switched off; all of them with `-m sweep`.
"""

import onnx
import pytest

from nnadapter.candidates import prepare
from nnadapter.onnx.preparation import specialize
from tests.examples.fewest_segments import fewest_segments
from tests.examples.reading import PICTURES, in_place_of_onnxruntime, texts_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of RapidOCR's dependencies
]
SAID = {
    "lines_turned.png": "Turned: the second kernel",
    "bilingual.png": "内核已经编译完成",
}
FEW = [picture for picture in PICTURES if picture.name in SAID]
SWITCHED_OFF = {"Erf", "HardSigmoid", "Resize"}


@pytest.fixture(
    scope="module", params=[pytest.param(PICTURES, marks=pytest.mark.sweep, id="all"), pytest.param(FEW, id="few")]
)
def pictures(request):
    return request.param


@pytest.fixture(scope="module")
def expected(pictures):
    return texts_of(pictures)


@pytest.fixture(scope="module")
def switched_off(pictures):
    some = pictures[-1:] if pictures is FEW else pictures
    with in_place_of_onnxruntime([("fake_npu", {"switched_off": sorted(SWITCHED_OFF)}), "cpu"]) as sessions:
        texts = texts_of(some)
    yield texts, sessions
    for session in sessions:
        session.close()


@pytest.mark.sweep
def test_every_picture_shows_text(expected):
    assert len(expected) >= 2
    assert all(len(texts) >= 4 for texts in expected.values())


@pytest.mark.sweep
def test_pictures_have_the_known_text(expected):
    assert all(words in "".join(expected[picture]) for picture, words in SAID.items())


@pytest.mark.sweep
def test_fake_npu_reads_the_same_text(expected, pictures):
    with in_place_of_onnxruntime(["fake_npu", "cpu"]) as sessions:
        assert texts_of(pictures) == expected
    assert [session.get_providers() for session in sessions] == [["fake_npu", "CPUExecutionProvider"]] * 3
    for session in sessions:
        assert session.report().coverage.flops > 0.99
        assert not session.report().notes
        session.close()


@pytest.mark.sweep
def test_text_is_the_same_with_operations_switched_off(expected, switched_off):
    texts = switched_off[0]
    assert texts and texts == {picture: expected[picture] for picture in texts}


@pytest.mark.sweep
def test_only_switched_off_operations_are_refused(switched_off):
    refused = [key for session in switched_off[1] for key in session.report().refusals()]
    assert {(device, reason) for device, _, reason in refused} == {("fake_npu", "switched_off")}
    assert {op_type for _, op_type, _ in refused} == SWITCHED_OFF


def test_switched_off_nodes_run_on_the_cpu(switched_off):
    for session in switched_off[1]:
        running = [node for node in session.report().nodes if node.state == "runs"]
        assert {node.device for node in running if node.op_type in SWITCHED_OFF} == {"cpu"}
        assert {node.device for node in running if node.op_type not in SWITCHED_OFF} == {"fake_npu"}


def test_number_of_segments_is_minimal(switched_off):
    for session in switched_off[1]:
        report = session.report()
        graph = specialize(prepare(onnx.load(session.path)), report.input_shapes).graph
        device = {node.name: node.device for node in report.nodes}
        assert report.exact
        assert len(report.segments) == fewest_segments(graph, [device[node.name] for node in graph.nodes])
        assert report.switches == len(report.segments) - 1
