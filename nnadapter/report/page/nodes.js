// The table of all nodes: searched by words and by `op:`, `device:`, `segment:` and `reason:`.

const FIELDS = {
  op: (row) => data.ops[columns.op[row]],
  device: (row) => placeNames[columns.place[row]],
  segment: (row) => String(columns.segment[row]),
  reason: (row) => columns.refused[row].map((index) => data.refusals[index][1]),
};

/** Every value of a key, in lower case. */
const KNOWN = Object.fromEntries(
  [["op", data.ops], ["device", placeNames], ["reason", data.refusals.map((refusal) => refusal[1])]].map(([field, values]) => [field, new Set(values.map((value) => value.toLowerCase()))]),
);

class Nodes {
  constructor(selectSegment) {
    this.all = Array.from({ length: nodeCount }, (_, index) => index);
    this.panel = make("div", { "aria-live": "polite" });
    this.table = new Table({
      label: "Nodes", kind: "nodes", columns: nodeColumns(), empty: "No node matches. Clear the search or the filter.",
      onOpen: (row) => this.panel.replaceChildren(nodePanel(row, selectSegment)),
    });
    this.found = make("span", { class: "muted", role: "status", "aria-live": "polite", id: "found" });
    this.search = make("input", {
      type: "search", id: "search", placeholder: "Name, op type, reason …", "aria-label": "Search nodes", autocomplete: "off", spellcheck: "false",
      oninput: debounced(() => this.filter(), 80),
    });
    const places = placeNames.map((name, place) => [name, place]).filter(([, place]) => columns.place.includes(place));
    this.place = make("select", { id: "place", onchange: () => this.filter() }, make("option", { value: "" }, "anywhere"), places.map(([name, place]) => make("option", { value: String(place) }, name)));
    find("nodes").append(
      make("h2", { id: "nodes-title" }, "Nodes"),
      make("p", { class: "muted" }, "All words must match. ", make("code", null, "op:Conv"), ", ", make("code", null, "device:cpu"), ", ", make("code", null, "segment:3"), " and ", make("code", null, "reason:dtype"), " search one column, and parts of words match: ", make("code", null, "op:con"), "."),
      make("div", { class: "tools" }, make("div", { class: "grow" }, this.search), make("label", null, "Runs on", this.place), make("button", { class: "quiet", type: "button", onclick: () => this.ask("") }, "Clear"), this.found),
      this.table.element, this.panel,
    );
    this.filter();
  }

  /** Search on behalf of a click elsewhere on the page. */
  ask(query) {
    this.search.value = query;
    this.place.value = "";
    this.filter();
    if (query) find("nodes").scrollIntoView({ block: "start" });
  }

  filter() {
    const tests = this.search.value.toLowerCase().split(/\s+/).filter(Boolean).map((word) => this.test(word));
    const place = this.place.value;
    const rows = this.all.filter((row) => (place === "" || columns.place[row] === Number(place)) && tests.every((test) => test(row)));
    this.found.textContent = `${rows.length.toLocaleString("en")} of ${countText(nodeCount, "node")}`;
    this.panel.replaceChildren();
    this.table.show(rows);
  }

  test(word) {
    const [field, wanted] = [word.slice(0, word.indexOf(":")), word.slice(word.indexOf(":") + 1)];
    if (word.includes(":") && field in FIELDS && wanted) {
      return (row) => [FIELDS[field](row)].flat().some((value) => fits(value.toLowerCase(), wanted, field));
    }
    return (row) => this.text(row).includes(word);
  }

  text(row) {
    this.texts = this.texts || new Array(nodeCount);
    if (this.texts[row] === undefined) {
      const refusals = columns.refused[row].map((index) => data.refusals[index].join(" "));
      this.texts[row] = [columns.name[row], data.ops[columns.op[row]], placeNames[columns.place[row]], data.texts[columns.runs[row]], ...refusals].join("\n").toLowerCase();
    }
    return this.texts[row];
  }
}

/** Parts of words match, except for segment numbers; a complete known value matches only itself. */
function fits(value, wanted, field) {
  return field === "segment" || KNOWN[field].has(wanted) ? value === wanted : value.includes(wanted);
}

function nodeColumns() {
  const timed = columns.seconds.some((seconds) => seconds !== null);
  const last = timed
    ? { title: "Predicted", number: true, class: "middling", value: (row) => columns.seconds[row], content: secondsText }
    : { title: "Bytes", number: true, class: "wide", value: (row) => columns.bytes[row], content: (row) => bytesText(columns.bytes[row]) };
  const reasons = (row) => [...new Set(columns.refused[row].map((index) => data.refusals[index][1]))].join(", ");
  return [
    { title: "Node", value: (row) => columns.name[row], content: (row) => make("span", { class: "mono" }, columns.name[row]) },
    { title: "Op type", value: (row) => data.ops[columns.op[row]] },
    { title: "Runs on", value: (row) => placeNames[columns.place[row]], content: (row) => chip(columns.place[row]) },
    { title: "Segment", number: true, class: "middling", value: (row) => (columns.segment[row] < 0 ? null : columns.segment[row]), content: (row) => (columns.segment[row] < 0 ? "–" : String(columns.segment[row])) },
    { title: "FLOPs", number: true, class: "middling", value: (row) => columns.flops[row], content: (row) => flopsText(columns.flops[row]) },
    last,
    { title: "Order", number: true, class: "wide", value: (row) => row, content: (row) => String(row) },
    { title: "Refused because", class: "wide", value: reasons },
  ];
}

function segmentTable(select) {
  const time = (title, of, guessed = () => false) => ({ title, number: true, class: "wide", value: of, content: (index) => foretold(of(index), guessed(index)) });
  const amount = (title, of) => ({ title, number: true, class: "wide", value: of, content: (index) => bytesText(of(index)) });
  const of = (index) => data.segments[index];
  const table = new Table({
    label: "Segments", kind: "segments", onOpen: select,
    columns: [
      { title: "Segment", number: true, value: (index) => index },
      { title: "Device", value: (index) => data.devices[of(index).device], content: (index) => chip(of(index).device) },
      { title: "Nodes", number: true, value: (index) => of(index).count },
      { title: "FLOPs", number: true, value: (index) => of(index).flops, content: (index) => flopsText(of(index).flops) },
      amount("Weights", (index) => of(index).weights),
      amount("In", (index) => bytesOf(data, of(index).in)),
      amount("Out", (index) => bytesOf(data, of(index).out)),
      time("Predicted", (index) => of(index).predicted, (index) => data.guessed[of(index).device]), time("Last run", (index) => of(index).seconds),
    ],
  });
  table.show(data.segments.map((_, index) => index));
  return table;
}
