// Panels of one segment and of one node.

/** Panel of a segment: figures, facts from the device, and tensors with their sources and targets. */
function segmentPanel(plan, index, { select, showNodes }) {
  const segment = plan.segments[index];
  const parts = [["transfers", segment.transfer], ["launch", segment.launch]]
    .filter(([, seconds]) => typeof seconds === "number").map(([word, seconds]) => `${timeText(seconds)} ${word}`);
  const predicted = foretold(segment.predicted, plan.guessed[segment.device]) + (parts.length ? `, including ${parts.join(" and ")}` : "");
  const nodes = countText(segment.count, "node");
  return make(
    "div", { class: "panel" }, make("h3", null, `Segment ${index} on ${plan.devices[segment.device]}`),
    segment.failures ? make("p", { class: "callout" }, inline(segment.failures.join("; "))) : null,
    make("div", { class: "columns" }, make(
      "dl", null, pair("nodes", showNodes ? make("button", { class: "link", type: "button", onclick: () => showNodes(index) }, `show its ${nodes}`) : nodes),
      pair("FLOPs", flopsText(segment.flops)), pair("weights", bytesText(segment.weights)),
      pair("predicted", segment.predicted === undefined ? "" : predicted), pair("last run", timeText(segment.seconds)),
      pair("saved compared with the CPU", foretold(segment.benefit, plan.guessed.some(Boolean))), pair("compiling", timeText(segment.compile)),
      pair("program", segment.bound === undefined ? "" : `shared with segment ${segment.bound}, with its own weights`),
    ), toldBy(plan.devices[segment.device], segment.facts)),
    make(
      "div", { class: "columns" }, tensorList(plan, "Reads", segment.in, (name) => makers(plan, name), "from", select),
      tensorList(plan, "Writes", segment.out, (name) => plan.readers.get(name) || [], "to", select),
    ),
  );
}

/** Facts from the device about a segment. */
function toldBy(device, facts) {
  if (!facts) return null;
  const pairs = Object.entries(facts).map(([name, value]) => pair(name.replace("_over_bound_", "_above_its_lower_bound_").replace(/_(bytes|percent)$/, "").replaceAll("_", " "), factText(name, value)));
  return make("dl", { "aria-label": `reported by ${device}` }, make("dt", { class: "says" }, `reported by ${device}`), pairs);
}

function makers(plan, name) {
  const index = plan.maker.get(name);
  return index === undefined ? [] : [index];
}

function factText(name, value) {
  if (value === null) return "not finite";
  if (typeof value === "number" && name.endsWith("_bytes")) return bytesText(value);
  if (typeof value === "number" && name.endsWith("_percent")) return `${value.toFixed(1)} %`;
  return String(value);
}

function tensorList(plan, title, tensors, ends, word, select) {
  const rows = tensors.slice(0, 500).map((index) => {
    const [name, dtype, shape, size] = plan.tensors[index];
    const segments = ends(name).slice(0, 6).map((end) => [
      " ", make("button", { class: "link", type: "button", onclick: () => select(end) }, `segment ${end}`),
    ]);
    const outside = word === "from" ? " the model's input" : " the model's outputs";
    return make(
      "li", null,
      make("span", null, make("span", { class: "mono" }, name), make("br"), make("span", { class: "muted" }, `${dtype} ${shape} ${word}`, segments.length ? segments : outside)),
      make("span", { class: "amount" }, bytesText(size)),
    );
  });
  const more = tensors.length - rows.length;
  return make(
    "div", null, make("h3", null, `${title}: ${countText(tensors.length, "tensor")}, ${bytesText(bytesOf(plan, tensors))}`),
    make("ul", { class: "tensors" }, rows, more > 0 ? make("li", { class: "muted" }, `and ${more} more`) : null),
  );
}

/** Panel of a node. */
function nodePanel(row, selectSegment) {
  const refused = columns.refused[row].map((index) => data.refusals[index]);
  const segment = columns.segment[row];
  return make(
    "div", { class: "panel" }, make("h3", { class: "mono" }, columns.name[row]),
    make(
      "dl", null, pair("op type", data.ops[columns.op[row]]), pair("where", chip(columns.place[row])),
      pair("segment", segment < 0 ? "" : make("button", { class: "link", type: "button", onclick: () => selectSegment(segment) }, `segment ${segment}`)),
      pair("runs as", data.texts[columns.runs[row]]), pair("FLOPs", flopsText(columns.flops[row])),
      pair("bytes read and written", bytesText(columns.bytes[row])), pair("predicted", secondsText(row)),
      (data.bodies[row] || []).map((body) => pair("body", body)),
      refused.map(([device, reason, detail]) => pair(`refused by ${device}`, make("span", null, make("span", { class: "reason" }, reason), " ", inline(detail)))),
    ),
  );
}
