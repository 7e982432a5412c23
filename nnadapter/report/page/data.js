// The report's data, and values derived from it.

const data = JSON.parse(find("data").textContent);
const columns = data.nodes;
const nodeCount = columns.name.length;
const placeNames = data.places;

/** CSS variable of a place's color: accelerators have their own, hosts one gray, folded and unused another. */
function colorOf(place, plan) {
  const devices = (plan || data).devices;
  const hosts = (plan || data).hosts;
  if (place >= devices.length) return "--away";
  if (hosts[place]) return "--host";
  let index = 0;
  for (let other = 0; other < place; other += 1) index += hosts[other] ? 0 : 1;
  return `--device-${index % 8}`;
}

function chip(place, plan) {
  const swatch = make("i", { "aria-hidden": "true" });
  swatch.style.background = `var(${colorOf(place, plan)})`;
  const names = plan ? plan.devices : placeNames;
  return make("span", { class: "chip" }, swatch, names[place]);
}

function chipNamed(name) {
  const place = placeNames.indexOf(name);
  return place < 0 ? make("span", { class: "chip" }, name) : chip(place);
}

/** The predicted time of a node, with a mark if it is a guess. */
const secondsText = (row) => foretold(columns.seconds[row], data.guessed[columns.place[row]]);

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

/** Bytes of tensors; null where one is unknown. */
function bytesOf(plan, tensors) {
  let total = 0;
  for (const index of tensors) {
    const size = plan.tensors[index][3];
    if (size === null) return null;
    total += size;
  }
  return total;
}

/** Tensor -> the segment that makes it, and -> those that read it. Tensors are joined by their names. */
function link(plan) {
  const maker = new Map();
  const readers = new Map();
  const name = (index) => plan.tensors[index][0];
  plan.segments.forEach((segment, index) => {
    segment.index = index;
    for (const tensor of segment.out) maker.set(name(tensor), index);
    for (const tensor of segment.in) {
      if (!readers.has(name(tensor))) readers.set(name(tensor), []);
      readers.get(name(tensor)).push(index);
    }
  });
  plan.maker = maker;
  plan.readers = readers;
  return plan;
}

link(data);
if (data.before) link(data.before);
