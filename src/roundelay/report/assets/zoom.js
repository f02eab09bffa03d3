// One way to zoom for everything that has an axis along which one can go: drag, keys, buttons, pinch.
function zoomable(frame, view) {
  // ``view``: {full(): [low, high], get(): [low, high], set(range or null), kind: "linear" or "log"}
  const f = () => (view.kind() === "log" ? Math.log : (v) => v);
  const back = () => (view.kind() === "log" ? Math.exp : (v) => v);

  function place(low, high) {
    const full = view.full().map(f());
    let [a, b] = [low, high];
    const size = Math.min(b - a, full[1] - full[0]);
    if (a < full[0]) [a, b] = [full[0], full[0] + size];
    if (b > full[1]) [a, b] = [full[1] - size, full[1]];
    const whole = b - a >= (full[1] - full[0]) * 0.999;
    view.set(whole ? null : [back()(a), back()(b)]);
    reset.disabled = whole;
  }

  function zoom(factor, at = 0.5) {
    const [a, b] = view.get().map(f());
    const middle = a + (b - a) * at;
    place(middle - (middle - a) * factor, middle + (b - middle) * factor);
  }

  function pan(share) {
    const [a, b] = view.get().map(f());
    place(a + (b - a) * share, b + (b - a) * share);
  }

  const button = (text, label, action) => {
    const made = el("button", { type: "button", "aria-label": label, title: label }, text);
    made.addEventListener("click", action);
    return made;
  };
  const reset = button("reset", "reset: show all again", () => all());
  reset.disabled = true;
  const all = () => {
    view.set(null);
    reset.disabled = true;
  };
  const tools = el("div", { class: "tools" }, button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(0.625)), reset);

  frame.tabIndex = 0;
  frame.addEventListener("keydown", (event) => {
    const act = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.625), "=": () => zoom(0.625),
      ArrowUp: () => zoom(0.625), "-": () => zoom(1.6), ArrowDown: () => zoom(1.6), 0: all, Home: all, Escape: all,
    }[event.key];
    if (!act || event.target !== frame) return;
    event.preventDefault();
    act();
  });
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view.share(event));
  }, { passive: false });
  frame.addEventListener("dblclick", all);
  drag(frame, view, place, f);
  return tools;
}

function drag(frame, view, place, f) {
  let start = null;
  let box = null;
  frame.addEventListener("pointerdown", (event) => {
    const share = view.share(event);
    if (event.button !== 0 || share === null || share < 0 || share > 1) return;
    start = { share, x: event.clientX, area: view.area(event) };
  });
  window.addEventListener("pointermove", (event) => {
    if (!start || Math.abs(event.clientX - start.x) < 5) return;
    const { left, width, top, height } = start.area;
    const at = Math.min(Math.max((event.clientX - left) / width, 0), 1);
    if (!box) {
      box = el("div", { class: "brush" });
      document.body.append(box);
      hideTip();
    }
    box.style.left = `${left + Math.min(at, start.share) * width}px`;
    box.style.width = `${Math.abs(at - start.share) * width}px`;
    box.style.top = `${top}px`;
    box.style.height = `${height}px`;
  });
  const end = (event) => {
    if (start && box && event.type === "pointerup") {
      const { left, width } = start.area;
      const at = Math.min(Math.max((event.clientX - left) / width, 0), 1);
      const [a, b] = view.get().map(f());
      const [from, to] = [Math.min(at, start.share), Math.max(at, start.share)];
      if (to - from > 0.004) place(a + (b - a) * from, a + (b - a) * to);
    }
    if (box) box.remove();
    start = box = null;
  };
  window.addEventListener("pointerup", end);
  window.addEventListener("pointercancel", end);
}
