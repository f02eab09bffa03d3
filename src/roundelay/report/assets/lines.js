// Lines over an axis, a panel for each facet; bands from least to most, markers, rules to compare with.
function drawLines(figure, spec, frame) {
  let range = null; // of x, where zoomed
  const all = () => spec.series.flatMap((s) => (shown(s.style) ? s.points.map((p) => p[0]) : []));
  const full = () => tight(all(), spec.x);
  const view = {
    kind: () => spec.x.scale,
    full,
    get: () => range || full(),
    set: (wanted) => { range = wanted; draw(); },
    share: (event) => { const a = view.area(event); return a ? (event.clientX - a.left) / a.width : null; },
    area: (event) => {
      const picture = event.target.closest("svg.panel");
      if (!picture) return null;
      const box = picture.getBoundingClientRect();
      const ratio = box.width / picture.viewBox.baseVal.width;
      const m = picture.margins;
      return { left: box.left + m.left * ratio, width: box.width - (m.left + m.right) * ratio, top: box.top + m.top * ratio, height: box.height - (m.top + m.bottom) * ratio };
    },
  };
  const tools = zoomable(frame, view);

  function draw() {
    const found = panels(spec.series);
    const grid = el("div", { class: "panels" });
    const [columns, width] = layout(frame, found.size);
    grid.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    const ys = [...found.values()].flat().flatMap((s) => visible(s, range).flatMap((p) => (p.length > 3 ? [p[1], p[2], p[3]] : [p[1]])));
    const rules = spec.rules.map((rule) => (rule.slope ? rule.slope * Math.max(...all()) : rule.y));
    const y = extent([...tame(ys, spec.y), ...(range ? [] : rules)], spec.y);
    for (const [facet, own] of found) grid.append(headed(facet, linePanel(spec, facet, own, { x: view.get(), y, width, several: found.size > 1 })));
    if (!found.size) grid.append(el("p", { class: "nothing" }, "No data under this filter."));
    frame.replaceChildren(grid);
  }
  return { draw, tools };
}

// One curve that blows up must not flatten all others: it runs out of the picture, and the picture says so.
function tame(values, axis) {
  if (axis.scale !== "log" || values.length < 8) return values;
  const sorted = values.filter((v) => v > 0).sort((a, b) => a - b);
  const limit = 4 * sorted[Math.floor(sorted.length * 0.9)];
  return sorted.filter((v) => v <= limit);
}

function tight(values, axis) {
  const good = values.filter((v) => Number.isFinite(v) && (axis.scale !== "log" || v > 0));
  if (!good.length) return [axis.scale === "log" ? 0.1 : 0, 1];
  let [low, high] = [Infinity, -Infinity];
  for (const v of good) { low = Math.min(low, v); high = Math.max(high, v); }
  if (axis.scale === "log") return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.03, high * (high / low) ** 0.03];
  return [Math.min(0, low), high * 1.02 || 1];
}

function layout(frame, count) {
  const width = Math.max(frame.clientWidth, 280);
  const columns = Math.max(1, Math.min(count, width >= 900 ? 3 : width >= 620 ? 2 : 1));
  return [columns, Math.floor((width - (columns - 1) * 20) / columns)];
}

// The points within a range, and the next one on each side, so that lines run out of the picture.
function visible(series, range) {
  if (!range) return series.points;
  const p = series.points;
  let [a, b] = [0, p.length];
  while (a < b && p[a][0] < range[0]) a++;
  while (b > a && p[b - 1][0] > range[1]) b--;
  return p.slice(Math.max(0, a - 1), b + 1);
}

function axes(picture, spec, x, y, size, names) {
  const { width, height, m } = size;
  const levels = y.ticks(Math.floor((height - m.top - m.bottom) / 38));
  const said = labels(levels);
  levels.forEach((tick, i) => {
    const at = y(tick);
    picture.append(svg("line", { x1: m.left, x2: width - m.right, y1: at, y2: at, class: "grid" }));
    picture.append(svg("text", { x: m.left - 7, y: at + 3.5, class: "tick end" }, said[i]));
  });
  const steps = spec.x.label === "learners" ? names.counts : x.ticks(Math.floor((width - m.left - m.right) / 70));
  const inside = steps.filter((t) => t >= x.low && t <= x.high);
  const words = labels(inside);
  inside.forEach((tick, i) => {
    picture.append(svg("line", { x1: x(tick), x2: x(tick), y1: height - m.bottom, y2: height - m.bottom + 4, class: "axis" }));
    picture.append(svg("text", { x: x(tick), y: height - m.bottom + 17, class: "tick middle" }, words[i]));
  });
  picture.append(svg("line", { x1: m.left, x2: width - m.right, y1: height - m.bottom, y2: height - m.bottom, class: "axis" }));
  picture.append(svg("text", { x: width - m.right, y: height - 4, class: "label end" }, spec.x.title));
  picture.append(svg("text", { x: 2, y: 11, class: "label" }, spec.y.title));
}

function linePanel(spec, facet, own, { x: [x0, x1], y: [y0, y1], width, several }) {
  const m = { left: 48, right: 12, top: 24, bottom: 40 };
  const height = several ? 250 : Math.min(340, Math.max(250, width * 0.56));
  const words = `${spec.title}${facet ? `, ${facet}` : ""}: ${own.map((s) => `${s.label} ${s.points.length ? number(s.points[s.points.length - 1][1], 3) : "no data"}`).join("; ")}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "panel", role: "img", "aria-label": words });
  picture.margins = m;
  picture.style.maxWidth = `${width}px`; // on paper it shrinks, and does not grow
  const x = scale(spec.x.scale, x0, x1, m.left, width - m.right);
  const y = scale(spec.y.scale, y0, y1, height - m.bottom, m.top);
  const counts = [...new Set(own.flatMap((s) => s.points.map((p) => p[0])))];
  axes(picture, spec, x, y, { width, height, m }, { counts });
  const clip = `clip-${spec.name}-${Math.random().toString(36).slice(2)}`;
  picture.append(svg("clipPath", { id: clip }, svg("rect", { x: m.left - 4, y: m.top - 4, width: width - m.left - m.right + 8, height: height - m.top - m.bottom + 8 })));
  const inner = svg("g", { "clip-path": `url(#${clip})` });
  picture.append(inner);
  for (const rule of spec.rules) drawRule(picture, inner, rule, x, y, { width, m });
  const groups = new Map();
  for (const series of own) {
    const group = drawSeries(series, x, y, [x0, x1]);
    groups.set(series, group);
    inner.append(group);
  }
  const beyond = own.filter((s) => visible(s, [x0, x1]).some((p) => p[1] > y1 * 1.001));
  if (beyond.length) picture.append(svg("text", { x: width - m.right, y: 11, class: "label end" }, `▲ off the scale: ${beyond.map((s) => `${s.label} to ${short(Math.max(...s.points.map((p) => p[1])))}`).join(", ")}`));
  hover(picture, own, groups, x, y, spec);
  return picture;
}

function drawRule(picture, inner, rule, x, y, { width, m }) {
  const path = rule.slope
    ? [[x.low, rule.slope * x.low], [x.high, rule.slope * x.high]]
    : [[x.low, rule.y], [x.high, rule.y]];
  if (!rule.slope && (rule.y < y.low || rule.y > y.high)) return;
  // Between its ends a straight line is one on two even or two logarithmic axes alike.
  inner.append(svg("path", { d: path.map(([a, b], i) => `${i ? "L" : "M"}${x(a)},${y(Math.max(b, y.kind === "log" ? 1e-12 : -Infinity))}`).join(""), class: "rule" }));
  const middle = x.invert(m.left + (width - m.left - m.right) * 0.62);
  const place = rule.slope ? { x: x(middle) - 9, y: y(middle * rule.slope) - 4 } : { x: width - m.right - 4, y: y(rule.y) - 5 };
  inner.append(svg("text", { ...place, class: "label end" }, rule.label));
}

function drawSeries(series, x, y, range) {
  const { css, dash } = look(series.style.strategy);
  const points = visible(series, range).filter((p) => y.kind !== "log" || p[1] > 0);
  const group = svg("g", { class: "series", "data-strategy": series.style.strategy });
  if (points.some((p) => p.length > 3)) {
    const safe = (v) => y(y.kind === "log" ? Math.max(v, y.low / 10) : v);
    const up = points.map((p, i) => `${i ? "L" : "M"}${x(p[0])},${safe(p.length > 3 ? p[3] : p[1])}`);
    const down = [...points].reverse().map((p) => `L${x(p[0])},${safe(p.length > 3 ? p[2] : p[1])}`);
    group.append(svg("path", { d: `${up.join("")}${down.join("")}Z`, class: `band ${css}` }));
  }
  group.append(svg("path", { d: points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(""), class: `line ${css}`, "stroke-dasharray": dash }));
  const every = Math.max(1, Math.ceil(points.length / 9));
  points.forEach((p, i) => { if (points.length <= 9 || i % every === Math.floor(every / 2)) group.append(mark(series.style.strategy, x(p[0]), y(p[1]), points.length > 24 ? 2.8 : 3.3)); });
  return group;
}

function hover(picture, own, groups, x, y, spec) {
  const guide = svg("circle", { r: 6, class: "guide", visibility: "hidden" });
  picture.append(guide);
  picture.addEventListener("pointermove", (event) => {
    if (event.buttons) return;
    const box = picture.getBoundingClientRect();
    const ratio = picture.viewBox.baseVal.width / box.width;
    const [px, py] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    let best = null;
    for (const series of own) {
      for (const p of series.points) {
        if (p[0] < x.low || p[0] > x.high) continue;
        const far = Math.hypot(x(p[0]) - px, (y(p[1]) - py) * 1.4);
        if (!best || far < best.far) best = { far, p, series };
      }
    }
    if (!best || best.far > 60) return leave();
    for (const [series, group] of groups) group.classList.toggle("dim", series !== best.series);
    fill(guide, { cx: x(best.p[0]), cy: y(best.p[1]), visibility: "visible" }, []);
    const lines = [best.series.label, `${spec.y.label} ${number(best.p[1])}${spec.y.unit ? ` ${spec.y.unit}` : ""}`, `${spec.x.label} ${number(best.p[0])}${spec.x.unit ? ` ${spec.x.unit}` : ""}`];
    if (best.p.length > 3) lines.push(`from ${number(best.p[2])} to ${number(best.p[3])}`);
    showTip(event.clientX, event.clientY, lines);
    return undefined;
  });
  const leave = () => {
    hideTip();
    guide.setAttribute("visibility", "hidden");
    for (const group of groups.values()) group.classList.remove("dim");
  };
  picture.addEventListener("pointerleave", leave);
}
