// The plan over time: a lane per device, to look at, zoom, and walk through with the keyboard.

const WIDEST = 180;

class Lanes {
  /** onSelect(index) is called when a segment is chosen, onEnter(index) when its nodes are asked for. */
  constructor(plan, { label, onSelect, onEnter }) {
    this.soon = oncePerFrame(() => this.draw());
    this.plan = plan;
    this.onSelect = onSelect;
    this.onEnter = onEnter;
    this.zoom = 1;
    this.measures = knownWidths();
    this.measure = this.measures[0] || WIDTHS[WIDTHS.length - 1];
    this.chart = { plan, edges: edgesOf(plan), selected: -1, hovered: -1 };
    this.chart.bytesIn = plan.segments.map((segment) => bytesOf(plan, segment.in) || 0);
    this.chart.most = Math.max(1, ...spread(this.chart.bytesIn), ...spread(this.chart.edges.map((edge) => edge.bytes)));
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.space = make("div", { class: "lane-space" });
    this.view = make(
      "div", {
        class: "lane-view", tabindex: "0", role: "application", "aria-roledescription": "chart of segments",
        "aria-label": `${label}. ${countText(plan.segments.length, "segment")} on ${countText(plan.devices.length, "device")}. `
          + "Left and right arrows select a segment, plus and minus zoom, Enter lists its nodes.",
      }, this.canvas, this.space,
    );
    this.said = make("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.drawing = new Drawing(this.canvas);
    this.element = make("div", null, this.tools(), make("div", { class: "lanes" }, this.names(), this.view), this.said);
    this.listen();
    this.rescale();
  }

  tools() {
    const options = this.measures.map(({ key, title }) => make("option", { value: key }, title));
    const choose = make("select", { onchange: (event) => this.take(event.target.value) }, options);
    const button = (text, label, action) => make("button", { class: "quiet", type: "button", "aria-label": label, onclick: action }, text);
    return make(
      "div", { class: "tools" }, make("label", null, "Widths", choose),
      button("−", "Zoom out", () => this.zoomBy(1 / 1.6)), button("+", "Zoom in", () => this.zoomBy(1.6)),
      button("Fit", "Show the whole plan", () => this.zoomBy(0)),
      make("span", { class: "muted detail roomy" }, "Click a segment for its tensors; arrows, + and − work too."),
    );
  }

  names() {
    const { plan } = this;
    const lanes = plan.devices.map((_, place) => {
      const own = plan.segments.filter((segment) => segment.device === place);
      const row = make(
        "div", null, chip(place, plan),
        make("span", { class: "small" }, `${countText(own.length, "segment")}, ${countText(sum(own.map((one) => one.count)), "node")}`),
      );
      row.style.height = `${LANE}px`;
      return row;
    });
    const foot = (text, high) => {
      const row = make("div", null, text);
      row.style.height = `${high}px`;
      return row;
    };
    this.axisName = foot("time", AXIS);
    return make("div", { class: "lane-names" }, lanes, foot("bytes in", TRAFFIC), this.axisName);
  }

  listen() {
    this.view.addEventListener("scroll", () => this.soon(), { passive: true });
    this.view.addEventListener("mousemove", (event) => this.hover(event));
    this.view.addEventListener("mouseleave", () => this.leave());
    this.view.addEventListener("click", (event) => this.select(this.under(event), true));
    this.view.addEventListener("keydown", (event) => this.key(event));
    this.view.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.soon()).observe(this.view);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.soon());
    document.addEventListener("themechange", () => this.soon());
  }

  take(key) {
    this.measure = this.measures.find((measure) => measure.key === key);
    this.rescale();
  }

  rescale() {
    this.chart.starts = scale(this.plan, this.measure);
    this.chart.axis = this.measure.time ? sum(this.plan.segments.map(this.measure.of)) : 0;
    this.axisName.hidden = !this.chart.axis;
    this.soon();
  }

  draw() {
    const room = Math.max(1, this.view.clientWidth);
    this.whole = room * this.zoom;
    this.space.style.width = `${this.whole}px`;
    this.drawing.paint(this.chart, { width: room, whole: this.whole, left: this.view.scrollLeft });
  }

  /** Zoom about the middle of the view, or about `at` pixels from its left; 0 shows the entire plan. */
  zoomBy(factor, at) {
    const room = this.view.clientWidth;
    const most = Math.max(1, (this.plan.segments.length * WIDEST) / room);
    const anchor = at === undefined ? room / 2 : at;
    const place = (this.view.scrollLeft + anchor) / (room * this.zoom);
    this.zoom = factor ? Math.max(1, Math.min(most, this.zoom * factor)) : 1;
    this.space.style.width = `${room * this.zoom}px`;
    this.view.scrollLeft = place * room * this.zoom - anchor;
    this.soon();
  }

  under(event) {
    const box = this.view.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left + this.view.scrollLeft, event.clientY - box.top];
    if (!this.plan.segments.length || x > this.whole) return -1;
    const index = segmentAt(this.chart.starts, placeOf(x, this.whole));
    const near = this.plan.segments[index].device === Math.floor(y / LANE);
    return near || y > this.plan.devices.length * LANE ? index : -1;
  }

  hover(event) {
    const index = this.under(event);
    if (index !== this.chart.hovered) {
      this.chart.hovered = index;
      this.soon();
    }
    showTip(index < 0 ? "" : this.words(index), event.clientX, event.clientY);
  }

  leave() {
    this.chart.hovered = -1;
    showTip("");
    this.soon();
  }

  words(index) {
    const { plan } = this;
    const segment = plan.segments[index];
    const amount = (tensors) => `${countText(tensors.length, "tensor")}, ${bytesText(bytesOf(plan, tensors))}`;
    const guessed = plan.guessed[segment.device];
    const times = [[guessed ? "guessed" : "predicted", segment.predicted], ["measured", segment.seconds]]
      .filter(([, seconds]) => typeof seconds === "number").map(([word, seconds]) => `\n${word} ${timeText(seconds)}`);
    return `segment ${index} on ${plan.devices[segment.device]}: ${countText(segment.count, "node")}, ${flopsText(segment.flops)}`
      + `\nreads ${amount(segment.in)}\nmakes ${amount(segment.out)}${times.join("")}`;
  }

  select(index, quiet) {
    if (index < 0 || index >= this.plan.segments.length) return;
    this.chart.selected = index;
    this.said.textContent = this.words(index).replaceAll("\n", "; ");
    const [left, right] = [pixelOf(this.chart.starts[index], this.whole), pixelOf(this.chart.starts[index + 1], this.whole)];
    const room = this.view.clientWidth;
    if (!quiet && (left < this.view.scrollLeft || right > this.view.scrollLeft + room)) this.view.scrollLeft = left - room / 3;
    this.soon();
    if (this.onSelect) this.onSelect(index);
  }

  key(event) {
    const { selected } = this.chart;
    const last = this.plan.segments.length - 1;
    const targets = { ArrowRight: Math.min(last, selected + 1), ArrowLeft: Math.max(0, selected - 1), Home: 0, End: last };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in targets) this.select(targets[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.6);
    else if (event.key === "-") this.zoomBy(1 / 1.6);
    else if (event.key === "0") this.zoomBy(0);
    else if (event.key === "Enter" && selected >= 0 && this.onEnter) this.onEnter(selected);
    else return;
    event.preventDefault();
  }

  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoomBy(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - this.view.getBoundingClientRect().left);
  }
}

/** The largest of many numbers, as arguments: a spread of 20,000 would be too many for a call. */
function spread(values) {
  return [values.reduce((most, value) => Math.max(most, value), 0)];
}

function showTip(text, x, y) {
  const tip = find("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}
