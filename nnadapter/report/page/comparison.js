// Comparison with an older report.

function figureText(value, unit) {
  if (value === null) return "–";
  if (unit === "share") return shareText(value);
  if (unit === "s") return timeText(value);
  return unit === "B" ? bytesText(value) : value.toLocaleString("en");
}

function verdict({ old_value: before, new_value: after, better: direction }) {
  if (before === after) return make("span", { class: "muted" }, "same");
  if (before === null || after === null || !direction) return "changed";
  const good = (after - before) * direction > 0;
  return make("span", { class: good ? "better" : "worse" }, good ? "▲ better" : "▼ worse");
}

function comparison() {
  const { difference } = data;
  if (!difference) return;
  const section = find("compared");
  section.hidden = false;
  const figures = (rows) => make("div", { class: "narrow" }, rows);
  section.append(
    make("h2", { id: "compared-title" }, "Before and after"), unlike(difference.conditions),
    figures(plainTable(["", "before", "after", ""], ["", "number", "number", ""], difference.figures.map((figure) => [
      figure.name, figureText(figure.old_value, figure.unit), figureText(figure.new_value, figure.unit), verdict(figure),
    ]))),
    moved(difference.moved_nodes), alone("new", difference.added_nodes), alone("gone", difference.removed_nodes), changed(difference.refusals),
    make("h3", null, "The plan before"), before(),
  );
}

/** Conditions that differ between the two reports. */
function unlike(conditions) {
  if (!conditions.length) return "";
  const lines = conditions.map(({ name, old_value, new_value }) => [name, old_value, new_value]);
  return make("div", { class: "callout", role: "note" }, make("strong", null, "The two reports were made under different conditions"), plainTable(["", "before", "after"], ["", "", ""], lines));
}

function before() {
  const panel = make("div");
  const lanes = new Lanes(data.before, {
    label: "The plan before",
    onSelect: (index) => panel.replaceChildren(segmentPanel(data.before, index, { select: (other) => lanes.select(other) })),
  });
  return make("div", null, lanes.element, panel);
}

function moved(nodes) {
  if (!nodes.length) return make("p", { class: "muted" }, "No node moved.");
  const place = (title, key) => ({ title, value: (node) => node[key], content: (node) => chipNamed(node[key]) });
  const table = new Table({
    label: "Nodes that moved", kind: "moved",
    columns: [
      { title: "Node", value: (node) => node.name, content: (node) => make("span", { class: "mono" }, node.name) },
      { title: "Op type", class: "wide", value: (node) => node.op_type }, place("Before", "old_place"), place("After", "new_place"),
    ],
  });
  table.show(nodes);
  return make("div", null, make("h3", null, `${countText(nodes.length, "node")} moved`), table.element);
}

function alone(word, names) {
  if (!names.length) return "";
  const list = names.slice(0, 200).map((name) => make("li", { class: "mono" }, name));
  const more = names.length > 200 ? make("li", { class: "muted" }, `and ${names.length - 200} more`) : null;
  return make("details", { class: "folds" }, make("summary", null, `${countText(names.length, "node")} ${word}`), make("ul", null, list, more));
}

function changed(refusals) {
  if (!refusals.length) return "";
  const word = (change) => (!change.old_count ? "new" : !change.new_count ? "gone" : "changed");
  return make("div", null, make("h3", null, "Refusals that changed"), longTable(
    ["op type", "by", "reason", "before", "after", ""], ["", "", "", "number", "number", ""], refusals,
    (change) => [change.op_type, change.device, make("span", { class: "reason" }, change.reason), String(change.old_count), String(change.new_count), word(change)],
  ));
}
