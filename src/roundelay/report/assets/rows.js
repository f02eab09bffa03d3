// Rows with a name each: dots with intervals, bars made of parts, small histograms.
const ROW = { dots: 26, stack: 30, ridges: 44 };

function drawRows(kind, figure, spec, frame) {
  const paint = { dots: dotPanel, stack: stackPanel, ridges: ridgePanel }[kind];
  function draw() {
    let items = kind === "stack" ? spec.bars : spec.series;
    if (items.some((item) => item.run)) items = items.filter((item) => item.run === page.run);
    const found = panels(items);
    const grid = el("div", { class: "panels" });
    const [columns, width] = layout(frame, found.size);
    grid.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    const flat = [...found.values()].flat();
    for (const [facet, own] of found) grid.append(headed(facet, rowPanel(kind, paint, spec, facet, own, { width, flat })));
    if (!found.size) grid.append(el("p", { class: "nothing" }, "No data under this filter."));
    frame.replaceChildren(grid);
  }
  return { draw, tools: null };
}

function rowPanel(kind, paint, spec, facet, own, { width, flat }) {
  const longest = Math.max(...flat.map((item) => item.label.length));
  const right = { dots: 58, stack: 12, ridges: 12 }[kind];
  const m = { left: Math.min(Math.max(longest * 7 + 14, 60), width * 0.42), right, top: 4, bottom: 40 };
  const height = m.top + own.length * ROW[kind] + m.bottom;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "panel", role: "img", "aria-label": `${spec.title}${facet ? `, ${facet}` : ""}: ${own.map((item) => said(kind, item)).join("; ")}` });
  picture.style.maxWidth = `${width}px`;
  const [low, high] = rowExtent(kind, spec, flat);
  const x = scale(spec.x.scale, low, high, m.left, width - m.right);
  const steps = x.ticks(Math.max(2, Math.floor((width - m.left - m.right) / 62)));
  const words = labels(steps);
  steps.forEach((tick, i) => {
    picture.append(svg("line", { x1: x(tick), x2: x(tick), y1: m.top, y2: height - m.bottom, class: "grid" }));
    picture.append(svg("text", { x: x(tick), y: height - m.bottom + 16, class: "tick middle" }, words[i]));
  });
  picture.append(svg("text", { x: width - m.right, y: height - 5, class: "label end" }, spec.x.title));
  own.forEach((item, i) => {
    const top = m.top + i * ROW[kind];
    const group = svg("g", { class: "row", "data-strategy": item.style.strategy });
    group.append(svg("rect", { x: 0, y: top, width, height: ROW[kind], class: "hit" }));
    group.append(svg("text", { x: m.left - 10, y: top + ROW[kind] / 2 + 4, class: "name end" }, clipped(item.label, m.left - 14)));
    paint(group, item, x, { top, middle: top + ROW[kind] / 2, width, m });
    group.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, [item.label, ...told(kind, item, spec)]));
    group.addEventListener("pointerleave", hideTip);
    picture.append(group);
  });
  return picture;
}

function clipped(text, room) {
  const most = Math.floor(room / 6.4);
  return text.length > most ? `${text.slice(0, Math.max(most - 1, 3))}…` : text;
}

function said(kind, item) {
  if (kind === "dots") return `${item.label} ${item.points.length ? number(item.points[0][0], 3) : item.note}`;
  if (kind === "stack") return `${item.label} ${Object.entries(item.parts).map(([name, share]) => `${name} ${number(share, 2)} %`).join(", ")}`;
  return item.label;
}

function told(kind, item, spec) {
  const unit = spec.x.unit ? ` ${spec.x.unit}` : "";
  if (kind === "dots") {
    if (!item.points.length) return [item.note];
    const [value, low, high] = item.points[0];
    const lines = [`${spec.x.label} ${number(value)}${unit}`];
    if (low !== high) lines.push(`from ${number(low)} to ${number(high)}`);
    if (item.note && !["not reached", "unknown", "not decoded", "nothing was sent"].includes(item.note)) lines.push(item.note);
    return lines;
  }
  if (kind === "stack") return Object.entries(item.parts).map(([name, share]) => `${name} ${number(share, 3)} %`);
  const whole = item.points.reduce((sum, p) => sum + p[2], 0) || 1;
  const mean = item.points.reduce((sum, p) => sum + ((p[0] + p[1]) / 2) * p[2], 0) / whole;
  return [`mean ${number(mean, 3)}`, `from ${number((item.points[0][0]), 3)} to ${number(item.points[item.points.length - 1][1], 3)}`];
}

function rowExtent(kind, spec, items) {
  if (kind === "stack") return [0, 100];
  const values = kind === "dots" ? items.flatMap((s) => s.points.flat()) : items.flatMap((s) => s.points.flatMap((p) => [p[0], p[1]]));
  const [low, high] = extent(values, spec.x);
  return kind === "dots" && spec.x.scale === "linear" && low > 0 && low < 0.5 * high ? [0, high] : [low, high];
}

function dotPanel(group, item, x, { middle, width, m }) {
  if (!item.points.length) {
    group.append(svg("text", { x: m.left + 8, y: middle + 4, class: "missing" }, `✕ ${item.note || "no data"}`));
    return;
  }
  const [value, low, high] = item.points[0];
  const { css } = look(item.style.strategy);
  if (high > low) {
    const ends = `M${x(low)},${middle - 4}v8M${x(low)},${middle}H${x(high)}M${x(high)},${middle - 4}v8`;
    group.append(svg("path", { d: ends, class: `whisker ${css}` }));
  }
  group.append(mark(item.style.strategy, x(value), middle, 4.4));
  group.append(svg("text", { x: width - m.right + 8, y: middle + 4, class: "value" }, number(value, 3)));
}

function stackPanel(group, item, x, { top }) {
  let from = 0;
  for (const kind of ["compute", "communicate", "wait"]) {
    const share = item.parts[kind] || 0;
    if (!share) continue;
    const box = { x: x(from), y: top + 5, width: Math.max(x(from + share) - x(from), 0.5), height: 14 };
    group.append(svg("rect", { ...box, class: `kind-${kind}` }));
    if (kind !== "compute") group.append(svg("rect", { ...box, fill: `url(#hatch-${kind})` }));
    if (box.width > 36) group.append(svg("text", { x: box.x + 5, y: top + 16, class: `inside on-${kind}` }, `${number(share, 2)} %`));
    from += share;
  }
  if (item.parts.serve) {
    group.append(svg("rect", { x: x(0), y: top + 20.5, width: Math.max(x(Math.min(item.parts.serve, 100)) - x(0), 1), height: 3, class: "kind-serve" }));
  }
}

function ridgePanel(group, item, x, { top }) {
  const most = Math.max(...item.points.map((p) => p[2]));
  const { css } = look(item.style.strategy);
  const bottom = top + ROW.ridges - 6;
  group.append(svg("line", { x1: x(x.low), x2: x(x.high), y1: bottom, y2: bottom, class: "axis" }));
  for (const [low, high, share] of item.points) {
    const tall = (share / most) * (ROW.ridges - 12);
    group.append(svg("rect", { x: x(low) + 0.5, y: bottom - tall, width: Math.max(x(high) - x(low) - 1, 1), height: tall, class: `bin ${css}` }));
  }
}
