// Positions of segments on the axis: each begins at the end of the preceding one.

const WIDTHS = [
  { key: "predicted", title: "predicted time", time: true, of: (segment) => segment.predicted },
  { key: "seconds", title: "measured time", time: true, of: (segment) => segment.seconds },
  { key: "flops", title: "FLOPs", of: (segment) => segment.flops },
  { key: "equal", title: "equal widths", of: () => 1 },
];

/** Measures that every segment has, in both plans if there are two, for comparison. */
function knownWidths() {
  const known = (plan, of) => {
    const values = plan.segments.map(of);
    return values.every((value) => typeof value === "number" && value >= 0) && sum(values) > 0;
  };
  return WIDTHS.filter(({ of }) => [data, data.before].filter(Boolean).every((plan) => known(plan, of)));
}

/** Ends of the segments from 0 to 1: `starts` has one entry more than there are segments. */
function scale(plan, measure) {
  const values = plan.segments.map(measure.of);
  // Each has at least a sliver, or the short ones could not be seen or pointed at. Time has an axis, which must be true.
  const sliver = measure.time || measure.key === "equal" ? 0 : (sum(values) / Math.max(1, values.length)) * 0.25;
  const starts = new Float64Array(values.length + 1);
  values.forEach((value, index) => {
    starts[index + 1] = starts[index] + value + sliver;
  });
  const whole = starts[values.length] || 1;
  return starts.map((start) => start / whole);
}

/** The segment at a place of the axis. */
function segmentAt(starts, place) {
  let [low, high] = [0, starts.length - 2];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Tensors between pairs of segments, merged: {from, to, bytes, count}. */
function edgesOf(plan) {
  const found = new Map();
  plan.segments.forEach((segment, to) => {
    for (const tensor of segment.in) {
      const from = plan.maker.get(plan.tensors[tensor][0]);
      if (from === undefined) continue;
      const key = from * plan.segments.length + to;
      if (!found.has(key)) found.set(key, { from, to, bytes: 0, count: 0 });
      const edge = found.get(key);
      edge.bytes += plan.tensors[tensor][3] || 0;
      edge.count += 1;
    }
  });
  return [...found.values()];
}

/** Seconds between two marks of an axis that has room for `most` of them: 1, 2 or 5 of some power of ten. */
function axisStep(seconds, most) {
  const least = seconds / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999);
}

/** A mark of the axis in the unit of its step, so that marks differ in nothing but their number. */
function axisText(seconds, step) {
  const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]].find(([, each]) => step >= each * 0.0999) || ["ns", 1e-9];
  return `${(seconds / size).toFixed(step / size < 0.999 ? 1 : 0)} ${unit}`;
}
