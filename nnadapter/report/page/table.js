// A table of any length: only the rows in sight are in the page.

const ROW_HEIGHT = 37;
const collator = new Intl.Collator("en", { numeric: true });
let tableCount = 0;

/**
 * A table that sorts, and in which arrow keys move and Enter opens a row.
 *
 * columns: {title, value(row), content?(row), number?, class?}; value is what sorts, content what is shown.
 */
class Table {
  constructor({ label, kind, columns: shown, onOpen, empty }) {
    this.soon = oncePerFrame(() => this.draw());
    this.shown = shown;
    this.onOpen = onOpen;
    this.rows = [];
    this.active = -1;
    this.sorted = -1;
    this.descending = false;
    this.id = `table-${(tableCount += 1)}`;
    this.heads = shown.map((column, index) => this.head(column, index));
    this.space = make("div", { role: "presentation" });
    this.empty = make("div", { class: "empty", hidden: true }, empty || "Nothing to show.");
    this.body = make("div", { class: "body", role: "rowgroup", tabindex: "0", "aria-label": label }, this.space, this.empty);
    this.element = make(
      "div", { class: `grid ${kind}`, role: "grid", "aria-label": label, "aria-colcount": String(shown.length) },
      make("div", { role: "rowgroup", class: "head" }, make("div", { class: "row", role: "row" }, this.heads)), this.body,
    );
    this.body.addEventListener("scroll", () => this.soon(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.soon()).observe(this.body);
  }

  head(column, index) {
    const button = make("button", { type: "button", onclick: () => this.sort(index) }, column.title);
    return make("div", { class: classes(column), role: "columnheader", "aria-sort": "none" }, button);
  }

  /** Show other rows: an array of anything, in the order in which they are to stand. */
  show(rows) {
    this.given = rows;
    this.active = -1;
    this.arrange();
    this.body.scrollTop = 0;
  }

  sort(index) {
    this.descending = this.sorted === index ? !this.descending : Boolean(this.shown[index].number);
    this.sorted = index;
    this.arrange();
  }

  arrange() {
    const chosen = this.active >= 0 ? this.rows[this.active] : undefined;
    const column = this.shown[this.sorted];
    this.rows = column ? ordered(this.given, column, this.descending) : this.given;
    this.active = chosen === undefined ? -1 : this.rows.indexOf(chosen);
    this.heads.forEach((head, index) => {
      const here = index === this.sorted;
      head.setAttribute("aria-sort", here ? (this.descending ? "descending" : "ascending") : "none");
      head.firstChild.textContent = this.shown[index].title + (here ? (this.descending ? " ↓" : " ↑") : "");
    });
    this.element.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.space.style.height = `${this.rows.length * ROW_HEIGHT}px`;
    this.body.style.height = `${Math.min(12, Math.max(2, this.rows.length)) * ROW_HEIGHT}px`;
    this.empty.hidden = this.rows.length > 0;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW_HEIGHT) - 6);
    const last = Math.min(this.rows.length, Math.ceil((this.body.scrollTop + this.body.clientHeight) / ROW_HEIGHT) + 6);
    const drawn = [];
    for (let index = first; index < last; index += 1) drawn.push(this.row(index));
    this.space.replaceChildren(...drawn);
    if (this.active >= 0) this.body.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
    else this.body.removeAttribute("aria-activedescendant");
  }

  row(index) {
    const item = this.rows[index];
    const cells = this.shown.map((column) => {
      const content = column.content ? column.content(item) : String(column.value(item));
      const title = typeof content === "string" ? content : content.textContent;
      return make("div", { class: classes(column), role: "gridcell", title }, content);
    });
    const row = make(
      "div", {
        class: "row", role: "row", id: `${this.id}-${index}`, "aria-rowindex": String(index + 2),
        "aria-selected": index === this.active ? "true" : "false", onclick: () => this.open(index),
      }, cells,
    );
    row.style.top = `${index * ROW_HEIGHT}px`;
    return row;
  }

  open(index) {
    this.active = index;
    this.draw();
    if (this.onOpen) this.onOpen(this.rows[index]);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW_HEIGHT) - 1);
    const last = this.rows.length - 1;
    const targets = {
      ArrowDown: this.active + 1, ArrowUp: this.active - 1, PageDown: this.active + page, PageUp: this.active - page,
      Home: 0, End: last,
    };
    if (event.key === "Enter" && this.active >= 0) this.open(this.active);
    else if (event.key in targets && last >= 0) this.move(Math.max(0, Math.min(last, targets[event.key])));
    else return;
    event.preventDefault();
  }

  move(index) {
    this.active = index;
    const top = index * ROW_HEIGHT;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    const lowest = top + ROW_HEIGHT - this.body.clientHeight;
    if (lowest > this.body.scrollTop) this.body.scrollTop = lowest;
    this.draw();
  }
}

function classes(column) {
  return `cell${column.number ? " number" : ""}${column.class ? ` ${column.class}` : ""}`;
}

/** Rows sorted by a column; equal ones keep their order, unknown numbers come last. */
function ordered(rows, column, descending) {
  const keys = rows.map((row) => column.value(row));
  const unknown = (value) => value === null || value === undefined;
  const sign = descending ? -1 : 1;
  const compare = (a, b) => {
    const [left, right] = [keys[a], keys[b]];
    if (unknown(left) || unknown(right)) return Number(unknown(left)) - Number(unknown(right)) || a - b;
    const order = column.number ? left - right : collator.compare(left, right);
    return sign * order || a - b;
  };
  return rows.map((_, index) => index).sort(compare).map((index) => rows[index]);
}
