// The lanes as a picture on a canvas.

const LANE = 62;
const BLOCK = 36;
const TRAFFIC = 56;
const AXIS = 24;
const MARK = 90;
const MOST_EDGES = 800;
const MARGIN = 6;

/** Between the axis from 0 to 1 and pixels of a chart that is `whole` pixels wide. */
const pixelOf = (place, whole) => MARGIN + place * (whole - 2 * MARGIN);
const placeOf = (pixel, whole) => (pixel - MARGIN) / Math.max(1, whole - 2 * MARGIN);

/** Draws one chart. `chart` has plan, starts, edges, most (largest bytes), selected, hovered and visible devices. */
class Drawing {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
  }

  paint(chart, view) {
    const { canvas, pen } = this;
    const ratio = window.devicePixelRatio || 1;
    const height = chart.plan.devices.length * LANE + TRAFFIC + (chart.axis ? AXIS : 0);
    if (canvas.width !== Math.round(view.width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(view.width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${view.width}px`;
      canvas.style.height = `${height}px`;
    }
    const style = getComputedStyle(document.documentElement);
    this.color = (name) => style.getPropertyValue(name).trim();
    this.font = style.getPropertyValue("--sans");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, view.width, height);
    this.chart = chart;
    this.view = view;
    const last = chart.plan.segments.length - 1;
    this.first = last < 0 ? 0 : segmentAt(chart.starts, placeOf(view.left, view.whole));
    this.last = last < 0 ? -1 : Math.min(last, segmentAt(chart.starts, placeOf(view.left + view.width, view.whole)));
    this.rows();
    this.traffic();
    this.edges();
    this.blocks();
    this.labels();
    this.axis();
  }

  x(index) {
    return pixelOf(this.chart.starts[index], this.view.whole) - this.view.left;
  }

  box(index) {
    const left = this.x(index);
    const whole = this.x(index + 1) - left;
    const gap = whole > 12 ? 3 : whole > 5 ? 1 : 0;
    const lane = this.chart.plan.segments[index].device;
    return { left: left + gap / 2, width: Math.max(whole - gap, 1.2), top: lane * LANE + (LANE - BLOCK) / 2 };
  }

  rows() {
    const { pen, view } = this;
    pen.fillStyle = this.color("--line");
    this.chart.plan.devices.forEach((_, lane) => pen.fillRect(0, (lane + 1) * LANE - 1, view.width, 1));
  }

  /** Bytes that each segment reads from others, as bars from below; the square root keeps small ones in sight. */
  traffic() {
    const { pen, chart } = this;
    const foot = chart.plan.devices.length * LANE + TRAFFIC - 4;
    pen.fillStyle = this.color("--edge");
    for (let index = this.first; index <= this.last; index += 1) {
      const bytes = chart.bytesIn[index];
      if (!bytes) continue;
      const { left, width: wide } = this.box(index);
      const high = Math.max(1, Math.sqrt(bytes / chart.most) * (TRAFFIC - 18));
      pen.fillRect(left, foot - high, wide, high);
    }
  }

  edges() {
    const { chart } = this;
    const marked = (edge) => [chart.selected, chart.hovered].some((one) => one >= 0 && (edge.from === one || edge.to === one));
    const seen = chart.edges.filter((edge) => edge.to >= this.first && edge.from <= this.last);
    this.marked = seen.filter(marked).slice(0, MOST_EDGES);
    // Lines would hide segments that are too narrow.
    const pitch = this.view.width / Math.max(1, this.last - this.first + 1);
    if (seen.length <= MOST_EDGES && pitch > 4) for (const edge of seen) this.edge(edge, false);
    for (const edge of this.marked) this.edge(edge, true);
  }

  edge(edge, strong) {
    const { pen, chart } = this;
    const start = this.box(edge.from);
    const stop = this.box(edge.to);
    const [x0, y0] = [start.left + start.width, start.top + BLOCK / 2];
    const [x1, y1] = [stop.left, stop.top + BLOCK / 2];
    pen.strokeStyle = this.color(strong ? "--edge-strong" : "--edge");
    pen.globalAlpha = strong ? 1 : 0.45;
    pen.lineWidth = 0.8 + 3.2 * Math.sqrt(edge.bytes / chart.most);
    pen.beginPath();
    if (start.top === stop.top) this.arc(x0, x1, start.top);
    else this.curve(x0, y0, x1, y1);
    pen.stroke();
    pen.globalAlpha = 1;
  }

  arc(x0, x1, top) {
    const lift = Math.min((LANE - BLOCK) / 2 + 3, 4 + (x1 - x0) / 12);
    this.pen.moveTo(x0 - 2, top);
    this.pen.bezierCurveTo(x0 + 4, top - lift, x1 - 4, top - lift, x1 + 2, top);
  }

  curve(x0, y0, x1, y1) {
    const bend = Math.max(6, Math.min(40, (x1 - x0) / 2));
    this.pen.moveTo(x0, y0);
    this.pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  }

  blocks() {
    const { pen, chart } = this;
    for (let index = this.first; index <= this.last; index += 1) {
      const { left, width: wide, top } = this.box(index);
      pen.fillStyle = this.color(colorOf(chart.plan.segments[index].device, chart.plan));
      if (wide < 5) {
        pen.fillRect(left, top, wide, BLOCK);
      } else {
        pen.beginPath();
        pen.roundRect(left, top, wide, BLOCK, Math.min(5, wide / 3));
        pen.fill();
      }
      if (index === chart.selected || index === chart.hovered) this.ring(left, top, wide, index === chart.selected);
    }
  }

  ring(left, top, wide, selected) {
    this.pen.strokeStyle = this.color(selected ? "--accent" : "--text");
    this.pen.lineWidth = selected ? 3 : 1.5;
    this.pen.beginPath();
    this.pen.roundRect(left - 1, top - 1, Math.max(wide + 2, 4), BLOCK + 2, 5);
    this.pen.stroke();
  }

  labels() {
    const { pen, chart, view } = this;
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    for (let index = this.first; index <= this.last; index += 1) {
      const { left, width: wide, top } = this.box(index);
      if (wide < 22) continue;
      const middle = (Math.max(left, 0) + Math.min(left + wide, view.width)) / 2;
      const segment = chart.plan.segments[index];
      pen.fillStyle = this.color("--on-device");
      pen.font = `600 12px ${this.font}`;
      const second = wide > 74 ? countText(segment.count, "node") : "";
      pen.fillText(String(index), middle, top + BLOCK / 2 - (second ? 6 : 0));
      pen.font = `11px ${this.font}`;
      if (second) pen.fillText(second, middle, top + BLOCK / 2 + 7);
    }
    this.amounts();
  }

  /** Marks of time below, if widths are times. */
  axis() {
    const { pen, chart, view } = this;
    if (!chart.axis) return;
    const top = chart.plan.devices.length * LANE + TRAFFIC;
    const step = axisStep(chart.axis, view.whole / MARK);
    const at = (seconds) => pixelOf(seconds / chart.axis, view.whole) - view.left;
    pen.font = `10.5px ${this.font}`;
    pen.fillStyle = this.color("--line");
    pen.fillRect(0, top, view.width, 1);
    const first = Math.max(0, Math.floor((placeOf(view.left, view.whole) * chart.axis) / step));
    for (let mark = first; mark * step <= chart.axis * 1.0001 && at(mark * step) < view.width; mark += 1) {
      pen.fillStyle = this.color("--edge");
      pen.fillRect(at(mark * step), top, 1, 5);
      pen.fillStyle = this.color("--muted");
      const text = axisText(mark * step, step);
      const half = pen.measureText(text).width / 2;
      const middle = Math.max(half + 2, Math.min(at(mark * step) + view.left, view.whole - half - 2)) - view.left;
      pen.fillText(text, middle, top + 14);
    }
  }

  /** Bytes at the bars that have room. */
  amounts() {
    const { pen, chart } = this;
    const foot = chart.plan.devices.length * LANE + TRAFFIC - 4;
    pen.fillStyle = this.color("--muted");
    pen.font = `10.5px ${this.font}`;
    for (let index = this.first; index <= this.last; index += 1) {
      const { left, width: wide } = this.box(index);
      const bytes = chart.bytesIn[index];
      if (wide < 56 || !bytes) continue;
      const high = Math.max(1, Math.sqrt(bytes / chart.most) * (TRAFFIC - 18));
      pen.fillText(bytesText(bytes), left + wide / 2, foot - high - 7);
    }
  }
}
