// Small tools: elements, numbers in words, scales, ticks, marks.  Text is only ever set as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  return fill(node, attributes, children);
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  return fill(node, attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children) node.append(child);
  return node;
}

function read(id) {
  const node = document.getElementById(id);
  return node ? JSON.parse(node.textContent) : null;
}

const THIN = "\u202f";

function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(value)));
  if (exponent < -4 || exponent >= 10) return value.toExponential(Math.max(digits - 2, 1)).replace("e+", "e");
  const text = value.toFixed(Math.max(digits - 1 - exponent, 0));
  const [whole, part] = text.split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, THIN);
  const rest = (part || "").replace(/0+$/, "");
  return rest ? `${spaced}.${rest}` : spaced;
}

function short(value, digits = 3) {
  // For ticks: 12 k, 3.5 M; small ones as they are.
  const size = Math.abs(value);
  for (const [unit, own] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= own) return `${number(value / own, digits)}${THIN}${unit}`;
  }
  return number(value, digits);
}

// As few digits as tell all ticks apart.
function labels(steps) {
  for (let digits = 3; ; digits++) {
    const said = steps.map((step) => short(step, digits));
    if (digits > 8 || new Set(said).size === steps.length) return said;
  }
}

function seconds(value) {
  for (const [unit, own] of [["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]]) {
    if (value >= own * (own >= 60 ? 2 : 1)) return `${number(value / own, 3)} ${unit}`;
  }
  return value ? `${number(value * 1e6, 3)} µs` : "0 s";
}

// A scale maps numbers to pixels and back, evenly or by their logarithm.
function scale(kind, low, high, from, to) {
  const f = kind === "log" ? Math.log10 : (v) => v;
  const back = kind === "log" ? (v) => 10 ** v : (v) => v;
  const [a, b] = [f(low), f(high)];
  const span = b - a || 1;
  const map = (v) => from + ((f(v) - a) / span) * (to - from);
  map.invert = (p) => back(a + ((p - from) / (to - from)) * span);
  map.low = low;
  map.high = high;
  map.kind = kind;
  map.ticks = (n) => (kind === "log" ? logTicks(low, high, n) : ticks(low, high, n));
  return map;
}

function ticks(low, high, n) {
  const found = evenTicks(low, high, n);
  return found.length > 1 ? found : evenTicks(low, high, 2 * n); // one alone says nothing of the scale
}

function evenTicks(low, high, n) {
  const raw = (high - low) / Math.max(n, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function logTicks(low, high, n) {
  if (high / low < 4) return ticks(low, high, n);
  for (const parts of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const m of parts) {
        const tick = m * 10 ** e;
        if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
      }
    }
    if (found.length <= n + 1) return found.length >= 2 ? found : ticks(low, high, n);
  }
  const all = [];
  const step = Math.ceil((Math.log10(high) - Math.log10(low)) / Math.max(n, 1));
  for (let e = Math.ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; e += step) all.push(10 ** e);
  return all;
}

// A range of an axis, with a little room at its ends.
function extent(values, axis) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (axis.scale === "log" && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return axis.scale === "log" ? [0.1, 1] : [0, 1];
  if (axis.scale === "log") {
    const room = (high / low) ** 0.05 * 1.005;
    return low === high ? [low / 1.5, high * 1.5] : [low / room, high * room];
  }
  if (axis.zero && low > 0) low = 0;
  const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  return [axis.zero && low === 0 ? 0 : low - room, high + room];
}

// Whoever cannot tell colours apart goes by dashes and markers.
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const MARKERS = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0,${-1.3 * r}L${1.25 * r},${r}H${-1.25 * r}Z`,
  (r) => `M0,${-1.4 * r}L${1.4 * r},0L0,${1.4 * r}L${-1.4 * r},0Z`,
  (r) => `M0,${1.3 * r}L${1.25 * r},${-r}H${-1.25 * r}Z`,
  (r) => `M${-r * 1.3},${-r * 0.45}H${-r * 0.45}V${-r * 1.3}H${r * 0.45}V${-r * 0.45}H${r * 1.3}V${r * 0.45}H${r * 0.45}V${r * 1.3}H${-r * 0.45}V${r * 0.45}H${-r * 1.3}Z`,
  (r) => `M0,${-1.4 * r}L${1.33 * r},${-0.43 * r}L${0.82 * r},${1.13 * r}H${-0.82 * r}L${-1.33 * r},${-0.43 * r}Z`,
];

function look(strategy) {
  const place = page.strategies.indexOf(strategy);
  if (place < 0) return { css: "sref", dash: "1 3", marker: MARKERS[0], hollow: true };
  return {
    css: `s${place % 8}`,
    dash: DASHES[(place + Math.floor(place / 8)) % DASHES.length],
    marker: MARKERS[place % MARKERS.length],
    hollow: Math.floor(place / MARKERS.length) % 2 === 1,
  };
}

function mark(strategy, x, y, r = 3.4) {
  const { css, marker, hollow } = look(strategy);
  return svg("path", { d: marker(r), transform: `translate(${x},${y})`, class: `mark ${css}${hollow ? " hollow" : ""}` });
}

function sample(strategy) {
  const { css, dash } = look(strategy);
  const picture = svg("svg", { width: 30, height: 12, viewBox: "0 0 30 12", class: "sample", "aria-hidden": "true" });
  picture.append(svg("path", { d: "M1,6H29", class: `line ${css}`, "stroke-dasharray": dash }), mark(strategy, 15, 6));
  return picture;
}

// What is shown: hidden names are kept, so that all is shown at first.
const hidden = { strategies: new Set(), learners: new Set() };

function shown(style) {
  if (style.learners && hidden.learners.has(style.learners)) return false;
  return !hidden.strategies.has(style.strategy);
}

function panels(items) {
  const found = new Map();
  for (const item of items) {
    if (!shown(item.style)) continue;
    const facet = item.style.facet;
    if (!found.has(facet)) found.set(facet, []);
    found.get(facet).push(item);
  }
  // A panel in which only the reference is left says nothing.
  for (const [facet, own] of found) {
    if (own.every((item) => !page.strategies.includes(item.style.strategy))) found.delete(facet);
  }
  return found;
}

// A panel with its heading, which wraps where a picture's text would not.
function headed(facet, picture) {
  if (!facet) return picture;
  const [first, ...rest] = facet.split(", ");
  const heading = el("p", { class: "facet" }, el("b", null, first));
  if (rest.length) heading.append(" ", el("span", null, rest.join(", ")));
  return el("div", { class: "cell" }, heading, picture);
}

const tip = el("div", { class: "tip", role: "status", hidden: "" });

function showTip(x, y, lines) {
  tip.replaceChildren(...lines.map((line, i) => el(i ? "div" : "b", null, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(x + 14, 4), document.documentElement.clientWidth - box.width - 6);
  const top = y - box.height - 12 < 4 ? y + 16 : y - box.height - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

function hideTip() {
  tip.hidden = true;
}
