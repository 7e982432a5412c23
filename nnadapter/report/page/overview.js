// The key figures, notes, costs and rules.

function tile(title, value, small, bar) {
  return make("div", { class: "tile" }, make("dt", null, title), make("dd", null, value, small ? make("span", { class: "small" }, small) : null, bar || null));
}

function shareBar(share) {
  const fill = width(make("i"), share);
  fill.style.background = "var(--accent)";
  return make("div", { class: "bar", "aria-hidden": "true" }, fill);
}

/** Shares are of known FLOPs. */
function flopsTile(share, known, uncounted) {
  if (!uncounted) return [tile("FLOPs off the CPU", shareText(share), `of ${flopsText(known)}`, shareBar(share))];
  const words = `${countText(uncounted, "node")} with unknown FLOPs`;
  if (!known) return [tile("FLOPs off the CPU", "–", words)];
  return [tile("Known FLOPs off the CPU", shareText(share), `of ${flopsText(known)}; ${words}`, shareBar(share))];
}

function overview() {
  const { coverage, segments, cost } = data;
  const away = segments.filter((segment) => !data.hosts[segment.device]).length;
  const states = (name) => columns.place.reduce((total, place) => total + (placeNames[place] === name && place >= data.devices.length ? 1 : 0), 0);
  const [folded, unused] = [states("folded"), states("unused")];
  const ends = [folded && `${folded} folded`, unused && `${unused} unused`].filter(Boolean).join(", ");
  const weights = Object.entries(data.weights.devices).filter(([, size]) => size).map(([name, size]) => `${name} ${bytesText(size)}`).join(", ");
  const tiles = [
    tile("Nodes off the CPU", shareText(coverage.nodes), `of ${countText(nodeCount - folded - unused, "node")} that run${ends ? `; ${ends}` : ""}`, shareBar(coverage.nodes)),
    ...flopsTile(coverage.flops, sum(columns.flops), columns.flops.filter((flops, row) => flops === null && columns.segment[row] >= 0).length),
    tile("Bytes off the CPU", shareText(coverage.bytes), `of ${bytesText(sum(columns.bytes))} read and written`, shareBar(coverage.bytes)),
    tile("Segments", segments.length.toLocaleString("en"), `${away.toLocaleString("en")} off the CPU; ${data.fewest}`),
    tile("Switches", data.switches.toLocaleString("en"), "from one device to another"),
    tile("Weights", bytesText(data.weights.total), weights),
  ];
  if (cost) tiles.push(tile(sentence(cost.word), foretold(cost.seconds, cost.word === "guessed"), costWords(cost)));
  const timed = segments.filter((segment) => segment.seconds !== undefined);
  if (timed.length) tiles.push(tile("Last run", timeText(sum(timed.map((segment) => segment.seconds))), `${countText(timed.length, "segment")} timed`));
  find("summary").append(judged(data.verdict), make("dl", { class: "tiles" }, tiles), callout("Notes", data.notes) || "", callout("Between host and devices", data.borders) || "");
}

/** The verdict. */
function judged({ kind, headline, more }) {
  return make("div", { class: `verdict ${kind}`, role: "note" }, make("p", { class: "headline" }, inline(headline)), more.map((words) => make("p", null, inline(words))));
}

function costWords(cost) {
  if (cost.bound_seconds === null) return sourceWords(cost);
  return `at least ${timeText(cost.bound_seconds)} for ${cost.bound_of}${cost.gap === null ? "" : `, gap ${shareText(cost.gap)}`}`;
}

const sourceWords = (cost) => Object.entries(cost.sources).map(([name, source]) => `${name}: ${source}`).join(", ");

/** Words as they begin a sentence. */
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

function callout(title, lines) {
  if (!lines.length) return null;
  const body = lines.length === 1 ? make("p", null, inline(lines[0])) : make("ul", null, lines.map((line) => make("li", null, inline(line))));
  return make("div", { class: "callout", role: "note" }, make("strong", null, title), body);
}

/** A plain table; rows are lists of cells, and columns of kind `number` are aligned right. */
function plainTable(heads, kinds, rows) {
  const cell = (tag, content, index) => make(tag, { class: kinds[index], scope: tag === "th" ? "col" : null }, content);
  return make(
    "div", { class: "wrapped" },
    make("table", null, make("thead", null, make("tr", null, heads.map((head, index) => cell("th", head, index)))),
      make("tbody", null, rows.map((row) => make("tr", null, row.map((content, index) => cell("td", content, index)))))),
  );
}

/** Costs, rules and the plan file, if there are any. */
function costs() {
  const { cost, rules, plan_file: plan } = data;
  if (!cost && !rules.length && !plan) return;
  const section = find("costs");
  section.hidden = false;
  section.append(make("h2", { id: "costs-title" }, "Costs and rules"), cost ? priced(cost) : "", rules.length ? ruled(rules) : "", plan ? bound(plan) : "");
}

function priced(cost) {
  const measured = cost.word === "measured";
  const own = measured ? [cost.predicted_seconds, cost.seconds] : [cost.seconds, null];
  const plans = [["this plan", ...own], ...cost.candidates.map((one) => [one.name, one.seconds, one.measured_seconds])];
  if (cost.all_cpu_seconds !== null && !cost.candidates.length) plans.push(["all on the CPU", ...(measured ? [cost.all_cpu_predicted_seconds, cost.all_cpu_seconds] : [cost.all_cpu_seconds, null])]);
  return make(
    "div", null, make("p", { class: "muted" }, `Costs of ${sourceWords(cost) || "unknown origin"}.`, cost.bound_kind ? ` The bound: ${cost.bound_kind}.` : "", cost.resting ? ` ${sentence(cost.resting)}.` : "", inline(cost.note ? ` ${cost.note}` : ""), cost.guess ? ` ${sentence(cost.guess)}.` : ""),
    plainTable(["candidate", "predicted", "measured"], ["", "number", "number"], plans.map(([name, predicted, taken]) => [name, foretold(predicted, Boolean(cost.guess)), timeText(taken)])),
  );
}

function ruled(rules) {
  const binds = (rule) => (rule.nodes ? countText(rule.nodes, "node") : make("span", { class: "worse" }, "applies to nothing"));
  return make("div", null, make("h3", null, "Rules"), plainTable(
    ["rule", "applies to", "from", "note"], ["", "", "", ""], rules.map((rule) => [make("code", null, rule.text), binds(rule), rule.source, inline(rule.note)]),
  ));
}

function bound(plan) {
  return make(
    "div", null, make("h3", null, "Plan file"), make("p", null, make("code", null, plan.path), `: ${countText(plan.bound, "node")} placed, ${countText(plan.lost, "entry", "entries")} not applied.`),
    plan.groups.length ? longTable(["node", "device", "reason"], ["", "", ""], plan.groups, ([names, device, why]) => [make("code", null, names), device, why]) : null,
  );
}

/** Conditions of the report. */
function made() {
  const { options, versions, machine, date, fallback } = data.made;
  const version = (name) => (versions[name] ? `version ${versions[name]}` : "");
  const device = (name) => [version(name), options[name]].filter(Boolean).join("; ") || "no options";
  const rest = Object.keys(versions).filter((name) => !data.devices.includes(name)).map((name) => `${name} ${versions[name]}`).join(", ");
  find("made").append(
    make("h2", { id: "made-title" }, "About this report"),
    make("dl", { class: "facts" }, data.devices.map((name, place) => pair(chip(place), device(name))), pair("policy", data.policy), pair("fallback", fallback),
      pair("versions", rest), pair("machine", machine), pair("page written", date)),
  );
}
