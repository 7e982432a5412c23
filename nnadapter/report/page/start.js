// Puts the page together.

function subtitle() {
  const shapes = data.inputs.map(([name, shape]) => `${name}[${shape.join(", ")}]`).join(", ");
  find("subtitle").textContent = `${data.devices.join(", then ")} · policy ${data.policy}${shapes ? ` · ${shapes}` : ""}${data.choice ? ` · where ${data.choice}` : ""}`;
}

function theme() {
  const button = find("theme");
  const themes = ["auto", "light", "dark"];
  let chosen = 0;
  button.addEventListener("click", () => {
    chosen = (chosen + 1) % themes.length;
    if (chosen) document.documentElement.dataset.theme = themes[chosen];
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${themes[chosen]}`;
    document.dispatchEvent(new Event("themechange"));
  });
}

function start() {
  subtitle();
  theme();
  overview();
  const panel = make("div", { id: "segment" });
  let nodes = null;
  const lanes = new Lanes(data, {
    label: "The plan over time",
    onSelect: (index) => panel.replaceChildren(segmentPanel(data, index, { select: (other) => lanes.select(other), showNodes: (other) => nodes.ask(`segment:${other}`) })),
    onEnter: (index) => nodes.ask(`segment:${index}`),
  });
  const select = (index) => {
    lanes.select(index);
    find("plan").scrollIntoView({ block: "start" });
  };
  const table = segmentTable((index) => lanes.select(index));
  find("plan").append(
    make("h2", { id: "plan-title" }, "The plan over time"),
    make("p", { class: "muted" }, "Segments run one after another, each in its device's lane. Lines are tensors that cross from one device to another, thicker with more bytes."),
    lanes.element, panel, make("details", { class: "folds" }, make("summary", null, "Segments as a table"), make("div", null, table.element)),
  );
  comparison();
  costs();
  made();
  nodes = new Nodes(select);
  refused((query) => nodes.ask(query));
  opTypes((query) => nodes.ask(query));
}

start();
