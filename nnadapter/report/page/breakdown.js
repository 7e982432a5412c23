// Refused nodes with their cost, including switches, and the devices of each op type.

const SHORT = 10;

function refused(show) {
  const groups = [...data.groups];
  const timed = groups.length > 0 && groups.every((group) => group.seconds !== null);
  const cost = (group) => (timed ? group.seconds + group.switching : group.flops);
  groups.sort((a, b) => cost(b) - cost(a) || b.nodes - a.nodes);
  const most = Math.max(...groups.map(cost), 0) || 1;
  const own = (group) => (timed ? foretold(group.seconds, group.guessed) : flopsText(group.flops));
  const row = (group) => {
    const fill = width(make("i"), cost(group) / most);
    fill.style.background = "var(--edge)";
    return [
      make("span", null, make("button", { class: "link", type: "button", onclick: () => show(`op:${group.op_type} reason:${group.reason}`) }, group.op_type), make("span", { class: "kept" }, ` ×${group.nodes.toLocaleString("en")}`), make("br"), make("span", { class: "detail taker" }, `by ${group.device}`)),
      make("span", null, make("span", { class: "reason" }, group.reason), make("br"), make("span", { class: "detail" }, `${group.example}: `, inline(group.detail))),
      make("span", null, timed ? foretold(cost(group), group.guessed) : own(group), group.between ? make("span", { class: "detail small" }, timed ? `${own(group)} to run, ${group.between}` : group.between) : null, make("div", { class: "bar", "aria-hidden": "true" }, fill)),
    ];
  };
  find("refused").append(
    make("h2", { id: "refused-title" }, "Refused nodes"),
    make("p", { class: "muted" }, groups.length
      ? `Their cost on their current devices, in ${timed ? "predicted time, including the device switches that they cause" : "FLOPs: times are not known"}.`
      : "None: every device accepted the nodes that it was offered."),
    groups.length ? longTable(["op type", "reason", "cost"], ["", "", "number"], groups, row) : "",
  );
}

/** A plain table that shows the first rows, and the rest on request. */
function longTable(heads, kinds, items, row) {
  const box = make("div");
  const draw = (number) => {
    const left = items.length - number;
    box.replaceChildren(plainTable(heads, kinds, items.slice(0, number).map(row)));
    if (left > 0) box.append(make("button", { class: "quiet", type: "button", onclick: () => draw(items.length) }, `Show ${left} more`));
  };
  draw(items.length <= SHORT + 2 ? items.length : SHORT);
  return box;
}

function opTypes(show) {
  const found = new Map();
  for (let row = 0; row < nodeCount; row += 1) {
    const op = columns.op[row];
    if (!found.has(op)) found.set(op, { op, nodes: 0, flops: 0, where: new Array(placeNames.length).fill(0) });
    const entry = found.get(op);
    entry.nodes += 1;
    entry.flops += columns.flops[row] || 0;
    entry.where[columns.place[row]] += 1;
  }
  const whole = sum([...found.values()].map((entry) => entry.flops));
  const items = [...found.values()].sort((a, b) => b.flops - a.flops || b.nodes - a.nodes);
  const row = (entry) => {
    const words = entry.where.map((nodes, place) => (nodes ? `${placeNames[place]} ${nodes}` : "")).filter(Boolean).join(", ");
    const bar = make("div", { class: "bar", "aria-hidden": "true" }, entry.where.map((nodes, place) => {
      const fill = width(make("i"), nodes / entry.nodes);
      fill.style.background = `var(${colorOf(place)})`;
      return fill;
    }));
    return [
      make("button", { class: "link", type: "button", onclick: () => show(`op:${data.ops[entry.op]}`) }, data.ops[entry.op]),
      entry.nodes.toLocaleString("en"), make("div", { class: "spread" }, bar, make("span", { class: "detail" }, words)),
      whole && entry.flops ? shareText(entry.flops / whole) : "–",
    ];
  };
  find("ops").append(
    make("h2", { id: "ops-title" }, "Where op types run"), make("p", { class: "muted" }, "Most FLOPs first."),
    longTable(["op type", "nodes", "where", "FLOPs"], ["", "number", "", "number"], items, row),
  );
}
