// The page: filters, figures drawn when they come into sight, tables sorted, numbers as tables.
const page = read("page");
const figures = [];

function start() {
  document.body.append(tip, hatches());
  buildFilter("strategies", page.strategies, (name) => [sample(name), name], (name) => name);
  buildFilter("learners", page.counts, (n) => [String(n)], (n) => n);
  buildRuns();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = figures.find((each) => each.node === entry.target);
      figure.seen = entry.isIntersecting;
      if (figure.seen) refresh(figure);
    }
  }, { rootMargin: "300px" });
  for (const node of document.querySelectorAll("figure[data-figure]")) {
    const figure = { node, seen: false, stale: true, plot: null };
    roomy(node);
    figures.push(figure);
    watch.observe(node);
  }
  for (const table of document.querySelectorAll("table")) sortable(table);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) redraw();
    width = window.innerWidth;
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => figures.forEach(refresh));
  document.documentElement.dataset.ready = "true";
}

// Keep about as much room as a figure will take, so that the page does not jump when it is drawn.
function roomy(node) {
  const { kind, panels: count, rows } = node.dataset;
  if (kind === "timeline") return;
  const [columns, width] = layout(node, Number(count));
  const high = kind === "lines" ? (count > 1 ? 275 : Math.min(340, Math.max(250, width * 0.56))) : Number(rows) * ROW[kind] + 50;
  node.querySelector(".frame").style.minHeight = `${Math.ceil(count / columns) * high}px`;
}

function refresh(figure) {
  if (!figure.stale) return;
  figure.stale = false;
  if (!figure.plot) figure.plot = make(figure.node);
  figure.node.querySelector(".frame").style.minHeight = "";
  figure.plot.draw();
}

function redraw() {
  for (const figure of figures) {
    figure.stale = true;
    if (figure.seen) refresh(figure);
  }
}

function make(node) {
  const frame = node.querySelector(".frame");
  const kind = node.dataset.kind;
  const spec = kind === "timeline" ? null : read(`data-${node.dataset.figure}`);
  const plot = kind === "timeline" ? drawTimeline(node, null, frame) : kind === "lines" ? drawLines(node, spec, frame) : drawRows(kind, node, spec, frame);
  if (plot.tools) node.querySelector(".head").append(plot.tools);
  if (plot.tools) {
    frame.setAttribute("role", "application");
    frame.setAttribute("aria-roledescription", "zoomable plot");
    frame.setAttribute("aria-label", `${node.querySelector("h3").textContent}. Left and right move, plus and minus zoom, zero shows all.`);
  }
  if (spec && kind === "lines") node.querySelector(".legend").append(...legend(spec));
  const numbers = node.querySelector("details.numbers");
  if (numbers && spec) numbers.addEventListener("toggle", () => numbers.open && numbers.childElementCount < 2 && numbers.append(asTable(kind, spec)));
  return plot;
}

function legend(spec) {
  const names = [...new Set(spec.series.map((s) => s.style.strategy))].sort((a, b) => page.strategies.indexOf(a) - page.strategies.indexOf(b));
  return names.map((name) => {
    const item = el("span", { class: "key", "data-strategy": name }, sample(name), name);
    const dim = (on) => {
      for (const group of item.closest("figure").querySelectorAll("g.series")) group.classList.toggle("dim", on && group.dataset.strategy !== name);
    };
    item.addEventListener("pointerenter", () => dim(true));
    item.addEventListener("pointerleave", () => dim(false));
    return item;
  });
}

function asTable(kind, spec) {
  const heads = {
    lines: [spec.x.title, spec.y.title, "low", "high"], dots: [spec.x.title, "low", "high"],
    stack: ["compute, %", "communicate, %", "wait, %", "serve, %"], ridges: ["from", "to", spec.y.title],
  }[kind];
  const body = el("tbody");
  const items = kind === "stack" ? spec.bars : spec.series;
  let rows = 0;
  for (const item of items) {
    const points = kind === "stack" ? [["compute", "communicate", "wait", "serve"].map((k) => item.parts[k])] : item.points.length ? item.points : [[item.note]];
    for (const point of points) {
      if (++rows > 2000) break;
      const cells = heads.map((_, i) => el("td", { class: "num" }, typeof point[i] === "string" ? point[i] : number(point[i], 5)));
      body.append(el("tr", { "data-strategy": item.style.strategy, "data-learners": item.style.learners }, el("th", { scope: "row" }, item.label), el("td", null, item.run || item.style.facet), ...cells));
    }
  }
  const head = el("tr", null, ...["series", "panel", ...heads].map((name, i) => el("th", { scope: "col", class: i > 1 ? "num" : null }, name)));
  const table = el("table", null, el("thead", null, head), body);
  sift(table);
  return el("div", { class: "scroll", tabindex: 0 }, table);
}

function buildFilter(what, names, content, value) {
  const box = document.getElementById(`filter-${what}`);
  if (!box) return;
  for (const name of names) {
    const chip = el("button", { type: "button", class: "chip", "aria-pressed": "true", "data-value": name }, ...content(name));
    chip.addEventListener("click", (event) => {
      const own = value(name);
      if (event.shiftKey || event.altKey) only(what, names.map(value), own);
      else if (hidden[what].has(own)) hidden[what].delete(own);
      else hidden[what].add(own);
      filtered();
    });
    chip.addEventListener("dblclick", () => { only(what, names.map(value), value(name)); filtered(); });
    box.append(chip);
  }
  document.getElementById(`all-${what}`)?.addEventListener("click", () => { hidden[what].clear(); filtered(); });
}

function only(what, all, one) {
  hidden[what].clear();
  for (const each of all) if (each !== one) hidden[what].add(each);
}

function filtered() {
  for (const what of ["strategies", "learners"]) {
    const box = document.getElementById(`filter-${what}`);
    for (const chip of box ? box.children : []) {
      const own = what === "learners" ? Number(chip.dataset.value) : chip.dataset.value;
      chip.setAttribute("aria-pressed", String(!hidden[what].has(own)));
    }
    const all = document.getElementById(`all-${what}`);
    if (all) all.disabled = !hidden[what].size;
  }
  for (const table of document.querySelectorAll("table")) sift(table);
  for (const key of document.querySelectorAll(".legend .key")) key.hidden = hidden.strategies.has(key.dataset.strategy);
  redraw();
}

function sift(table) {
  for (const row of table.tBodies[0].rows) {
    if (row.dataset.strategy !== undefined) row.hidden = !shown({ strategy: row.dataset.strategy, learners: Number(row.dataset.learners) });
  }
}

function buildRuns() {
  const select = document.getElementById("run");
  if (!select) return;
  for (const run of page.runs) select.append(el("option", { value: run.name }, run.title));
  page.run = select.value = (page.runs[page.first] || page.runs[0]).name;
  select.addEventListener("change", () => { page.run = select.value; redraw(); });
}

function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    cell.querySelector("button")?.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => (row.cells[i].dataset.value === undefined ? null : Number(row.cells[i].dataset.value));
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === null || b === null) {
          if (a !== b) return a === null ? 1 : -1; // what there is not comes last, whichever way
          return (down ? -1 : 1) * one.cells[i].textContent.localeCompare(other.cells[i].textContent);
        }
        return (down ? -1 : 1) * (a - b);
      });
      table.tBodies[0].append(...rows);
    });
  });
}

// Hatching tells kinds of time apart without colour.
function hatches() {
  const stripe = (id, angle, gap, css) => svg("pattern", { id, width: gap, height: gap, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` }, svg("line", { x1: 0, x2: 0, y1: 0, y2: gap, class: css }));
  return svg("svg", { width: 0, height: 0, class: "patterns", "aria-hidden": "true" }, svg("defs", null, stripe("hatch-communicate", 45, 4, "stripe-communicate"), stripe("hatch-wait", 135, 6, "stripe-wait")));
}

start();
