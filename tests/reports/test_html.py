"""The HTML page without a browser: its content security policy and embedded data, and no injection from them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.report import compare_reports
from tests.reports.made import HOSTILE, made_report, priced


class Elements(HTMLParser):
    """Parser that collects tags with attributes, and the contents of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.raw, self.title = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in ("script", "style") and self.cdata_elem:
            self.raw.append((self.tags[-1][0], self.tags[-1][1].get("type"), data))
        elif self.tags and self.tags[-1][0] == "title" and not self.title:
            self.title = data


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_page_fetches_nothing_and_runs_only_embedded_scripts():
    page = priced(made_report()).to_html("m")
    found = Elements(page)
    assert not [tag for tag, attributes in found.tags if {"src", "srcset", "action"} & attributes.keys()]
    assert [attributes["href"] for _, attributes in found.tags if "href" in attributes] == ["#nodes"]
    assert not re.search(r"https?://|@import|url\(", page)
    (policy,) = [attributes["content"] for _, attributes in found.tags if "http-equiv" in attributes]
    for tag, kind, text in found.raw:
        if kind is None:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not [attributes for _, attributes in found.tags if any(name.startswith("on") for name in attributes)]


@pytest.mark.slow
@given(
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5),
    title=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_names_round_trip_and_add_no_element(names, title):
    page = made_report(names=names).to_html(title)
    assert embedded(page)["nodes"]["name"] == names
    plain = Elements(made_report(1).to_html("m"))
    assert [tag for tag, _ in Elements(page).tags] == [tag for tag, _ in plain.tags]


def test_hostile_names_are_escaped():
    page = made_report(names=HOSTILE).to_html(HOSTILE[0])
    assert page.count("</script>") == 2 and 'onerror=\\"' in page and "<img" not in page
    assert embedded(page)["title"] == HOSTILE[0]


def test_embedded_data_equals_the_report():
    report = priced(made_report(30))
    data = embedded(report.to_html())
    columns = data["nodes"]
    for index, node in enumerate(report.nodes):
        assert data["places"][columns["place"][index]] == node.device
        assert data["ops"][columns["op"][index]] == node.op_type
        assert columns["segment"][index] == node.segment
        refusals = [data["refusals"][at] for at in columns["refused"][index]]
        assert refusals == [[item.device, item.reason, item.detail] for item in node.refusals]
    for segment, shown in zip(report.segments, data["segments"], strict=True):
        assert [data["tensors"][at][0] for at in shown["in"]] == [tensor.name for tensor in segment.inputs]
        assert (shown["predicted"], shown["count"]) == (segment.predicted_seconds, len(segment.nodes))


def test_comparison_embeds_both_plans():
    old, new = made_report(30, every=2), made_report(30)
    data = embedded(new.to_html("m", compare_reports(old, new)))
    assert len(data["before"]["segments"]) == len(old.segments) != len(data["segments"])
    assert len(data["difference"]["moved_nodes"]) == 15


@pytest.mark.sweep
def test_page_of_twenty_thousand_nodes_is_small():
    assert len(made_report(20_000).to_html()) < 4_000_000


def test_page_embeds_every_script_of_the_package():
    folder = resources.files("nnadapter") / "report" / "page"
    scripts = [file for file in folder.iterdir() if file.name.endswith(".js")]
    assert {file.name for file in folder.iterdir()} == {*(file.name for file in scripts), "page.css", "page.html"}
    page = made_report().to_html()
    assert scripts and all(file.read_text(encoding="utf-8").strip() in page for file in scripts)
