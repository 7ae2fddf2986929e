// Translates wheel, pointer and keyboard events to chart actions: zoom, pan, look, pin.

const ZOOM_STEP = 0.7;
const CLICK_DISTANCE = 4;

function listen(plot, chart) {
  const { view } = chart;
  listenWheel(plot, chart);
  listenPointer(plot, chart);
  const keys = {
    "+": () => view.zoom(ZOOM_STEP), "=": () => view.zoom(ZOOM_STEP), ArrowUp: () => view.zoom(ZOOM_STEP),
    "-": () => view.zoom(1 / ZOOM_STEP), ArrowDown: () => view.zoom(1 / ZOOM_STEP),
    ArrowLeft: () => view.pan(-0.15), ArrowRight: () => view.pan(0.15),
    0: () => view.whole(), Home: () => view.whole(), p: () => chart.goToPeak(), P: () => chart.goToPeak(),
  };
  const pins = { ArrowLeft: -1, ArrowRight: 1 };
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.shiftKey && event.key in pins) chart.pin(chart.pinned + pins[event.key]);
    else if (event.key in keys) keys[event.key]();
    else return;
    event.preventDefault();
    chart.redraw();
  });
}

function listenWheel(plot, chart) {
  const { view } = chart;
  plot.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    // At full zoom-out, the wheel scrolls the page.
    if (!sideways && event.deltaY > 0 && view.isWhole) return;
    event.preventDefault();
    if (sideways) view.pan((event.deltaX || event.deltaY) / 800);
    else view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), shareUnder(plot, event));
    chart.redraw();
  }, { passive: false });
}

// Drag pans, click pins, hover looks, and tap looks and pins.
function listenPointer(plot, chart) {
  let grabbed = null;
  plot.addEventListener("pointerdown", (event) => {
    grabbed = { x: event.clientX, last: event.clientX, moved: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (!grabbed) {
      chart.hover(event);
      return;
    }
    grabbed.moved ||= Math.abs(event.clientX - grabbed.x) > CLICK_DISTANCE;
    if (!grabbed.moved) return;
    plot.classList.add("panning");
    chart.leave();
    chart.view.pan((grabbed.last - event.clientX) / (chartWidth(plot) - AXIS_LEFT));
    grabbed.last = event.clientX;
    chart.redraw();
  });
  const release = (event) => {
    const moment = event.type === "pointerup" && grabbed && !grabbed.moved ? chart.momentAt(event) : null;
    if (moment !== null) chart.pin(moment);
    if (moment !== null && event.pointerType === "touch") chart.hover(event);
    grabbed = null;
    plot.classList.remove("panning");
  };
  plot.addEventListener("pointerup", release);
  plot.addEventListener("pointercancel", release);
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") chart.leave(); });
}

// Dragging in the overview moves the view.
function listenOverview(overview, chart) {
  const { view } = chart;
  const move = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    overview.setPointerCapture(event.pointerId);
    const share = shareUnder(overview, event);
    if (view.isWhole) view.zoom(0.2, share);
    else view.show(share * view.length - view.span / 2, view.span);
    chart.redraw();
  };
  overview.addEventListener("pointerdown", move);
  overview.addEventListener("pointermove", move);
}

function shareUnder(node, event) {
  const box = node.getBoundingClientRect();
  return Math.max(0, Math.min(1, (event.clientX - box.left - AXIS_LEFT) / (box.width - AXIS_LEFT)));
}
