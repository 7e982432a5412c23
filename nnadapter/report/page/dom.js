// Elements and numbers. Texts reach the page through text nodes alone, so that no name is ever markup.

/** An element with properties and children; strings become text nodes, null and false nothing. */
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** A function that calls `draw` with the next frame, once however often it is called before. */
function oncePerFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

function find(id) {
  return document.getElementById(id);
}

/** A width in percent, set by script, as the page's policy allows. */
function width(element, share) {
  element.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return element;
}

function prefixed(number, base, prefixes, unit) {
  let index = 0;
  while (Math.abs(number) >= base && index < prefixes.length - 1) {
    number /= base;
    index += 1;
  }
  return `${number.toFixed(index ? 1 : 0)} ${prefixes[index]}${unit}`;
}

const bytesText = (number) => (number === null ? "?" : prefixed(number, 1024, ["", "Ki", "Mi", "Gi", "Ti"], "B"));
const flopsText = (number) =>
  number === null || number === undefined ? "–" : prefixed(number, 1000, ["", "k", "M", "G", "T", "P"], "FLOP");
const shareText = (share) => `${(share * 100).toFixed(1)}%`;
const countText = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many || one + "s"}`;

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  if (size >= 1) return `${seconds.toFixed(2)} s`;
  if (size >= 1e-3) return `${(seconds * 1e3).toFixed(2)} ms`;
  if (size >= 1e-6 || size === 0) return `${(seconds * 1e6).toFixed(1)} µs`;
  return `${(seconds * 1e9).toFixed(0)} ns`;
}

/** A predicted time, with a mark if it is a guess. */
const foretold = (seconds, guessed) => (guessed && typeof seconds === "number" ? "~" : "") + timeText(seconds);

/** Our own sentences; text between backticks is code. */
const inline = (text) => text.split(/`([^`]*)`/).map((part, index) => (index % 2 ? make("code", null, part) : part));

/** A name and its value, for definition lists; nothing without a value. */
function pair(name, value) {
  if (value === null || value === undefined || value === "" || value === "–") return [];
  return [make("dt", null, name), make("dd", null, value)];
}

function debounced(action, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}
