"""The HTML report in a real browser: contents, no requests, and names that stay plain text."""

from __future__ import annotations

import dataclasses
import json

import pytest

from nnadapter.report import compare_reports, report_from
from tests.reports.made import HOSTILE, made_report, measured, priced

ROWS = "#nodes .body .row"
NAMES = f"{ROWS} .cell:first-child"
KEYS = {"right": "\ue014", "left": "\ue012", "down": "\ue015", "enter": "\ue007", "end": "\ue010"}


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light")])
def test_page_opens_without_errors_or_requests(show, width, scheme):
    old = made_report(30, every=2)
    new = priced(made_report(30))
    page = show(new, difference=compare_reports(old, new), width=width, scheme=scheme)
    page.picture(f"{width}-{scheme}")
    assert page.complaints() == [] and page.requests() == []
    assert page.run("document.documentElement.scrollWidth") <= width
    light = sum(map(int, page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")))
    assert (light > 600) == (scheme == "light")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (400, "dark"), (1400, "light"), (1400, "dark")])
def test_long_names_do_not_overflow(show, width, scheme):
    report = renamed(measured(made_report(12)), {"npu": "openvino:CPU_with_a_long_name"})
    title = "ch_ppocr_mobile_v2.0_cls_mobile_with_everything_that_exporters_write_into_names.onnx"
    page = show(report, title=title, width=width, scheme=scheme, difference=compare_reports(report, report))
    page.picture(f"long-{width}-{scheme}")
    assert page.run("document.documentElement.scrollWidth") <= width
    outside = page.run(
        """[...document.querySelectorAll("#theme, h1, #subtitle, .lane-names .chip, .tile, h2")].filter((one) => {
            const [own, around] = [one.getBoundingClientRect(), one.parentElement.getBoundingClientRect()];
            return own.right > around.right + 1 || own.right > innerWidth || one.scrollWidth > one.clientWidth + 1;
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def renamed(report, names):
    """Return the report with other device names."""
    text = report.to_json()
    for name, other in names.items():
        text = text.replace(f'"{name}"', f'"{other}"')
    return report_from(json.loads(text))


def test_content_security_policy_blocks_images_and_scripts(show):
    page = show(made_report())
    page.run("(document.body.append(Object.assign(new Image(), {src: 'https://example.invalid/x.png'})), 1)")
    page.run("(document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'})), 1)")
    page.settle()
    assert page.run("window.broken") is None
    assert any("Content Security Policy" in text for text in page.complaints())


def test_search_narrows_the_table(show):
    page = show(made_report(60))
    assert page.one("#found").text == "60 of 60 nodes"
    page.search("node/5")
    assert page.one("#found").text == "11 of 60 nodes"
    assert all(name.startswith("node/5") for name in page.texts(NAMES))
    page.search("op:op2 device:cpu")
    expected = [f"node/{index}" for index in range(60) if index % 7 == 2 and index % 3 == 2]
    assert page.texts(NAMES) == expected
    page.search("op:op2 device:cp reason:dty")
    assert page.texts(NAMES) == expected
    page.search("segment:1")
    assert page.one("#found").text == "1 of 60 nodes"
    page.search("nothing like it")
    assert page.one("#nodes .empty").is_displayed()


def test_table_is_sorted_by_column(show):
    page = show(made_report(20))
    head = page.all("#nodes [role=columnheader]")[0]
    for order, first in (("ascending", "node/0"), ("descending", "node/19")):
        head.find_element("css selector", "button").click()
        page.settle()
        assert head.get_attribute("aria-sort") == order
        assert page.texts(NAMES)[0] == first


def test_row_shows_the_refusal(show):
    page = show(made_report(9))
    page.one("#nodes .body").send_keys(KEYS["down"] * 3 + KEYS["enter"])
    page.settle()
    panel = page.one("#nodes .panel").text
    assert "node/2" in panel and "refused by npu" in panel and "node/2 is int64" in panel


def test_lanes_show_every_segment(show):
    report = made_report(12)
    page = show(report)
    view = page.one("#plan .lane-view")
    for index in range(len(report.segments)):
        view.send_keys(KEYS["right"])
        page.settle()
        assert f"Segment {index} on {report.segments[index].device}" in page.one("#segment h3").text
    assert page.texts("#segment .tensors .mono") == ["t7", "t8"]
    # The picture has the colors of both devices.
    drawn = page.run(
        """(() => {
            const canvas = document.querySelector("#plan canvas");
            const points = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let at = 0; at < points.length; at += 4) seen.add([...points.slice(at, at + 3)].join());
            return [...seen];
        })()"""
    )
    assert {"156,199,240", "207,213,221"} <= set(drawn)


def test_hovering_shows_a_segment_and_clicking_selects_it(show):
    from selenium.webdriver import ActionChains

    page = show(made_report(4))
    canvas = page.one("#plan canvas")
    width = canvas.size["width"]
    ActionChains(page.browser).move_to_element_with_offset(
        canvas, 40 - width // 2, 30 - canvas.size["height"] // 2
    ).perform()
    page.settle()
    assert "segment 0 on npu: 2 nodes" in page.one("#tip").text
    ActionChains(page.browser).click().perform()
    page.settle()
    assert page.one("#segment h3").text == "Segment 0 on npu"
    page.one("#segment dl button").click()
    page.settle()
    assert page.one("#search").get_attribute("value") == "segment:0" and page.one("#found").text == "2 of 4 nodes"


def test_zoomed_chart_scrolls_in_its_frame(show):
    page = show(made_report(300))
    view = page.one("#plan .lane-view")
    view.send_keys("+++++")
    page.settle()
    assert page.run("arguments[0].scrollWidth > 4 * arguments[0].clientWidth", view)
    view.send_keys(KEYS["end"])
    page.settle()
    assert page.run("arguments[0].scrollLeft > 0", view)
    view.send_keys("0")
    page.settle()
    assert page.run("arguments[0].scrollWidth <= arguments[0].clientWidth", view)


def test_hostile_names_are_text(show):
    page = show(made_report(names=HOSTILE, every=1), title=HOSTILE[0])
    assert page.complaints() == [] and page.requests() == []
    assert page.run("document.querySelectorAll('img, b, iframe').length") == 0
    assert page.texts(NAMES) == list(HOSTILE)
    assert page.run("document.title") == f"{HOSTILE[0]} · partition report"
    for index in range(len(HOSTILE)):
        page.all(ROWS)[index].click()
        assert page.texts("#nodes .panel h3") == [HOSTILE[index]]


@pytest.mark.sweep
def test_twenty_thousand_nodes_are_searchable(show):
    page = show(made_report(20_000, every=2))
    assert page.one("#found").text == "20,000 of 20,000 nodes"
    assert len(page.all(ROWS)) < 60
    for share in (0.5, 1):
        page.run("arguments[0].scrollTop = arguments[0].scrollHeight * arguments[1]", page.one("#nodes .body"), share)
        page.settle()
    assert page.texts(NAMES)[-1] == "node/19999"
    page.search("node/1234")
    assert page.one("#found").text == "11 of 20,000 nodes"
    page.one("#plan .lane-view").send_keys("+" * 12 + KEYS["end"])
    page.settle()
    assert page.one("#segment h3").text == "Segment 19999 on cpu"
    page.picture("20000")
    assert page.complaints() == []


def test_refusals_and_op_types_lead_to_their_nodes(show):
    page = show(made_report(21))
    assert "FLOPs: times are not known" in page.one("#refused").text
    page.one("#refused button.link").click()
    page.settle()
    assert page.texts(f"{ROWS} .cell:nth-child(3)") and set(page.texts(f"{ROWS} .cell:nth-child(3)")) == {"cpu"}
    page.all("#ops button.link")[0].click()
    page.settle()
    assert len(set(page.texts(f"{ROWS} .cell:nth-child(2)"))) == 1


def test_costs_rules_and_plan_file_are_shown(show):
    page = show(priced(made_report(12)))
    text = page.one("main").text
    for words in (
        "as long as on the CPU alone", "gap 25.0%", "simulated", "applies to nothing", "ban 1 in rules.toml",
        "no node has this name", "everything supported", "in predicted time",
    ):  # fmt: skip
        assert words in text, words


def test_a_measured_time_is_called_measured(show):
    page = show(measured(made_report(12)))
    tiles = dict(tile.text.split("\n")[:2] for tile in page.all(".tile"))
    assert tiles["Measured"] == "2.10 ms" and "Predicted" not in tiles
    assert page.one("#costs tbody tr").text.split() == ["this", "plan", "~3.00", "ms", "2.10", "ms"]
    text = page.one("main").text
    assert "the CPU alone is better than every candidate plan." in text
    assert "use other costs, of npu: simulated, cpu: modeled" in text


def test_comparison_shows_both_plans(show):
    old, new = made_report(30, every=2), made_report(30)
    page = show(new, difference=compare_reports(old, new))
    page.picture("compared")
    text = page.one("#compared").text
    assert "better" in text and "nodes moved" in text
    assert len(page.all(".lane-view")) == 2
    page.one("#compared .lane-view").send_keys(KEYS["end"])
    page.settle()
    assert f"Segment {len(old.segments) - 1} on cpu" in page.one("#compared .panel h3").text


def test_differing_conditions_are_shown(show):
    old, new = made_report(30), dataclasses.replace(made_report(30), policy="latency")
    text = show(new, difference=compare_reports(old, new)).one("#compared .callout").text
    assert "made under different conditions" in text and "policy priority latency" in " ".join(text.split())


def test_verdict_is_at_the_top(show):
    page = show(priced(made_report(12)))
    assert "takes 1.3 times as long as on the CPU alone: 4.00 ms against 3.00 ms, guessed" in page.one(".verdict").text
    assert page.run("document.querySelector('.verdict').getBoundingClientRect().top < 300")


def test_sentences_show_code_and_no_backticks(show):
    report = made_report(12)
    note = "costs are assumed; `nnadapter calibrate npu` measures them"
    report = dataclasses.replace(
        report, notes=(note,), cost_note="not known for npu; `nnadapter calibrate npu` does it"
    )
    page = show(report)
    assert "`" not in page.run("document.body.innerText")
    assert page.run("[...document.querySelectorAll('#summary code')].map((one) => one.textContent)") == [
        "nnadapter calibrate npu",
        "nnadapter calibrate npu",
    ]


def test_page_shows_versions_options_and_machine(show):
    report = dataclasses.replace(
        made_report(12), device_options={"npu": {"clock": "simulated"}}, machine="a machine",
        versions={"nnadapter": "0.1", "onnx": "1.20", "npu": "7.1"},
    )  # fmt: skip
    text = show(report).one("#made").text
    for words in ("version 7.1; clock=simulated", "nnadapter 0.1, onnx 1.20", "a machine", "UTC"):
        assert words in text


def test_time_axis_is_shown_only_for_times(show):
    page = show(priced(made_report(12)))
    heights = "document.querySelector('.lane-view canvas').height"
    high = page.run(heights)
    page.run("(() => { const choice = document.querySelector('#plan select'); choice.value = 'flops';"
             " choice.dispatchEvent(new Event('change')); })() || 1")  # fmt: skip
    page.run("new Promise((done) => setTimeout(() => done(1), 200))")
    assert high > page.run(heights) > 0


def test_theme_can_be_changed(show):
    page = show(made_report())
    grounds = []
    for _ in range(3):
        grounds.append(page.run("getComputedStyle(document.body).backgroundColor"))
        page.one("#theme").click()
    assert grounds[0] == grounds[1] != grounds[2]


def test_controls_have_accessible_names(show):
    page = show(priced(made_report(12)))
    nameless = page.run(
        """[...document.querySelectorAll("button, input, select, [role=grid], [role=application]")].filter((one) =>
            !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length)).length"""
    )
    assert nameless == 0
    assert page.run("[...document.querySelectorAll('section')].every((one) => one.hidden || one.innerText.trim())")


def contrast(first, second):
    def light(color):
        parts = [part / 255 for part in color]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(first), light(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(show, scheme):
    """WCAG 2.2, 1.4.3 requires at least 4.5 to 1."""
    page = show(made_report(), scheme=scheme)

    def color(name):
        script = """(() => {
            const probe = document.createElement("i");
            probe.style.color = `var(${arguments[0]})`;
            document.body.append(probe);
            const found = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number);
            probe.remove();
            return found;
        }).apply(null, arguments)"""
        return page.run(script, name)

    grounds = [color(name) for name in ("--card", "--soft", "--ground")]
    for name in ("--text", "--muted", "--accent", "--good", "--bad"):
        for ground in grounds:
            assert contrast(color(name), ground) >= 4.5, (name, ground)
    for name in (*(f"--device-{index}" for index in range(8)), "--host"):
        assert contrast(color("--on-device"), color(name)) >= 4.5, name
