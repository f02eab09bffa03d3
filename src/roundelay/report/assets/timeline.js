// Who computed, waited, sent and served, and when: a lane for each learner, on a canvas since there are many spans.
const LEFT = 92;
const RIGHT = 14;

function drawTimeline(figure, spec, frame) {
  const cache = new Map();
  let data = null;
  let range = null;
  let canvas = null;
  const view = {
    kind: () => "linear",
    full: () => (data ? [data.begin, data.end] : [0, 1]),
    get: () => range || view.full(),
    set: (wanted) => { range = wanted; paint(); },
    area: () => {
      const box = canvas.getBoundingClientRect();
      return { left: box.left + LEFT, width: box.width - LEFT - RIGHT, top: box.top, height: box.height - 30 };
    },
    share: (event) => { const a = view.area(); return (event.clientX - a.left) / a.width; },
  };
  const tools = zoomable(frame, view);

  function draw() {
    const place = page.runs.findIndex((run) => run.name === page.run);
    if (!cache.has(place)) cache.set(place, unpack(read(`timeline-${place}`)));
    if (cache.get(place) !== data) range = null;
    data = cache.get(place);
    canvas = el("canvas", { role: "img", "aria-label": data ? sayTimeline(data) : "no timeline" });
    canvas.addEventListener("pointermove", (event) => !event.buttons && pointed(event));
    canvas.addEventListener("pointerleave", hideTip);
    frame.replaceChildren(canvas);
    const note = figure.querySelector(".part");
    note.hidden = !data || data.end - data.begin > 0.98 * data.whole;
    if (data) note.textContent = `Shown here: from ${number(data.begin, 3)} s to ${number(data.end, 3)} s of ${number(data.whole, 3)} s.`;
    if (data) paint();
  }

  function size() {
    return Math.max(9, Math.min(24, Math.floor(560 / Math.max(data.rows.length, 1))));
  }

  // Events are named above the lanes.
  function head() {
    return data.events.length ? 18 : 0;
  }

  function paint() {
    const lane = size();
    const [width, height] = [Math.max(frame.clientWidth, 280), head() + data.rows.length * lane + 34];
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const ink = inks();
    const [a, b] = view.get();
    const x = scale("linear", a, b, LEFT, width - RIGHT);
    canvas.dataset.range = `${a} ${b}`;
    paintAxis(pen, ink, x, { width, height });
    data.rows.forEach((row, i) => paintLane(pen, ink, row, x, { top: head() + i * lane, lane, a, b, skip: lane < 13 && i % 2 }));
    paintEvents(pen, ink, data, x, height);
  }

  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    const y = event.clientY - box.top - head();
    const row = data.rows[Math.floor(y / size())];
    const share = view.share(event);
    if (!row || share < 0 || share > 1) return hideTip();
    const [a, b] = view.get();
    const time = a + (b - a) * share;
    const room = ((b - a) / box.width) * 1.5;
    const low = y % size() > size() * 0.78;
    const near = row.spans.filter((s) => s.begin - room <= time && time <= s.begin + s.seconds + room);
    const span = near.find((s) => (s.kind === "serve") === low) || near[0];
    if (!span) return hideTip();
    return showTip(event.clientX, event.clientY, [`${row.member}: ${span.kind}`, `for ${seconds(span.seconds)}`, `from ${number(span.begin, 6)} s, ${data.clock} time`]);
  }
  return { draw, tools };
}

function unpack(data) {
  if (!data) return null;
  for (const row of data.rows) {
    const packed = row.spans;
    const spans = [];
    let at = 0;
    for (let i = 0; i < packed.length; i += 3) {
      at += packed[i];
      spans.push({ begin: data.begin + at * data.tick, seconds: packed[i + 1] * data.tick, kind: data.kinds[packed[i + 2]] });
    }
    row.spans = spans;
  }
  return data;
}

function sayTimeline(data) {
  const part = data.end < data.whole * 0.999 || data.begin > 0 ? ` of ${seconds(data.whole)}` : "";
  return `Timeline of ${data.run}: ${data.rows.length} lanes, ${seconds(data.end - data.begin)}${part} of ${data.clock} time`;
}

function inks() {
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: ink("ink"), quiet: ink("quiet"), hair: ink("hair"), bad: ink("bad"), font: `12px ${style.getPropertyValue("--sans")}`,
    compute: ink("compute"), communicate: ink("communicate"), wait: ink("wait"), serve: ink("serve"), evaluate: ink("evaluate"),
  };
}

function paintAxis(pen, ink, x, { width, height }) {
  pen.font = ink.font;
  pen.fillStyle = ink.quiet;
  pen.textAlign = "center";
  const steps = x.ticks(Math.floor((width - LEFT - RIGHT) / 90));
  const digits = Math.max(0, Math.ceil(-Math.log10(Math.max(steps[1] - steps[0], 1e-9)) + 0.3));
  for (const tick of steps) {
    pen.fillRect(Math.round(x(tick)), height - 30, 1, 4);
    pen.fillText(`${tick.toFixed(digits)} s`, x(tick), height - 12);
  }
}

// Without colour one goes by height: computing is tall, communicating half as tall, waiting a thin line.
const HEIGHTS = { compute: [0.12, 0.62], communicate: [0.27, 0.32], wait: [0.4, 0.07], evaluate: [0.3, 0.26], serve: [0.8, 0.14] };

function paintLane(pen, ink, row, x, { top, lane, a, b, skip }) {
  pen.textAlign = "end";
  pen.fillStyle = ink.quiet;
  if (!skip) pen.fillText(row.member, LEFT - 10, top + lane / 2 + 4);
  pen.fillStyle = ink.hair;
  pen.fillRect(LEFT, top + lane - 1, x(b) - LEFT, 0.5);
  for (const kind of ["evaluate", "wait", "compute", "communicate", "serve"]) {
    pen.fillStyle = ink[kind];
    const [from, tall] = HEIGHTS[kind];
    for (const span of row.spans) {
      if (span.kind !== kind || span.begin > b || span.begin + span.seconds < a) continue;
      const left = Math.max(x(span.begin), LEFT);
      const right = Math.min(x(span.begin + span.seconds), x(b));
      // A gap of a hair shows where one span ends and the next begins, once there is room for it.
      const gap = right - left > 4 ? 0.7 : 0;
      pen.fillRect(left, top + lane * from, Math.max(right - left - gap, 0.4), Math.max(lane * tall, 1));
    }
  }
}

function paintEvents(pen, ink, data, x, height) {
  const marks = []; // events whose words would be on top of each other share them
  for (const event of data.events) {
    if (event.time < x.low || event.time > x.high) continue;
    const near = marks.find((m) => Math.abs(m.x - x(event.time)) < 3);
    if (near) near.words.add(event.event);
    else marks.push({ x: x(event.time), words: new Set([event.event]) });
  }
  pen.strokeStyle = pen.fillStyle = ink.bad;
  for (const { x: at, words } of marks) {
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(at, 4);
    pen.lineTo(at, height - 30);
    pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = at > x(x.high) - 90 ? "end" : "start";
    pen.fillText([...words].join(", "), at + (at > x(x.high) - 90 ? -4 : 4), 12);
  }
}
