// The memory timeline: stack or map, lanes, legend and table.

const LOOKS = [["category", "Category"], ["layer", "Layer"], ["address", "Address"]];
const AXES = [["event", "Events"], ["time", "Time"]];

function timelineSection(host, timelines) {
  const place = element("div");
  const open = (index) => {
    place.replaceChildren();
    new TimelineChart(place, indexTimeline(timelines[index]));
  };
  if (timelines.length > 1) {
    const windows = timelines.map((timeline, i) => [i, timeline.title]);
    host.append(element("div", { class: "bar" }, picker("Window", windows, open)));
  }
  host.append(place);
  open(0);
}

class TimelineChart {
  constructor(host, timeline) {
    this.timeline = timeline;
    this.view = new View(timeline);
    this.pinned = timeline.peak;
    this.look = "category";
    this.stack = stackBands(timeline, "category");
    this.build(host);
    this.table = readout(this.parts.table, timeline, () => this.pin(timeline.peak));
    listen(this.parts.plot, this);
    listenOverview(this.parts.band, this);
    keepDrawn(this.parts.plot, () => this.draw());
  }

  build(host) {
    const parts = this.parts = timelineParts(this.timeline);
    const lane = this.timeline.fragmentation.length ? [parts.lane] : [];
    host.append(element("figure", { class: "figure-panel" },
      element("div", { class: "bar" },
        choice("Show", LOOKS, this.look, (look) => this.show(look)).node,
        choice("Axis", AXES, "event", (axis) => this.setAxis(axis)).node, this.zoomButtons()),
      element("div", { class: "stage" },
        element("div", {}, parts.plot, ...lane, parts.band, parts.keys), parts.legend),
      parts.table));
  }

  zoomButtons() {
    const button = (text, label, act) => element("button",
      { type: "button", "aria-label": label, title: label, onclick: () => { act(); this.redraw(); } }, text);
    return element("div", { class: "choice push", role: "group", "aria-label": "Zoom" },
      button("−", "Zoom out", () => this.view.zoom(1 / ZOOM_STEP)),
      button("+", "Zoom in", () => this.view.zoom(ZOOM_STEP)),
      button("All", "Show the whole window", () => this.view.whole()),
      button("Peak", "Go to the peak", () => this.goToPeak()));
  }

  show(look) {
    this.look = look;
    this.stack = stackBands(this.timeline, look === "layer" ? "layer" : "category");
    if (look === "address") this.places ||= compactAddresses(this.timeline);
    this.draw();
  }

  setAxis(axis) {
    this.view.setAxis(axis);
    this.overview = null;
    this.draw();
  }

  draw() {
    const { parts, view } = this;
    const width = chartWidth(parts.plot);
    const size = { width, height: CHART_HEIGHT };
    const context = surface(parts.main, width, CHART_HEIGHT);
    this.drawn = this.look === "address"
      ? drawAddresses(context, size, view, this.places)
      : drawStack(context, size, view, this.stack.bands);
    if (this.timeline.fragmentation.length) {
      drawFragmentation(surface(parts.lane, width, LANE_HEIGHT), width, view, this.drawn.columns);
    }
    if (this.overview?.length !== width - AXIS_LEFT) this.overview = view.wholeColumns(width - AXIS_LEFT);
    drawOverview(surface(parts.overview, width, OVERVIEW_HEIGHT), width, view, this.overview);
    this.mark(null);
  }

  redraw() {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  // Marks the pinned and the inspected moment, and shows the bytes in the legend.
  mark(looked) {
    const { view, parts, drawn } = this;
    const width = chartWidth(parts.plot);
    const context = surface(parts.over, width, CHART_HEIGHT);
    const line = (moment, ink) => {
      const x = AXIS_LEFT + ((view.place(moment) - view.from) / view.span) * (width - AXIS_LEFT);
      if (x < AXIS_LEFT) return;
      context.fillStyle = color(ink);
      context.fillRect(Math.round(x), 8, 1, drawn.bottom - 8);
    };
    line(this.pinned, "accent");
    if (looked !== null) line(looked, "ink");
    bandLegend(parts.legend, this.timeline, this.stack.bands, looked ?? this.pinned);
  }

  pin(moment) {
    this.pinned = Math.max(0, Math.min(this.timeline.moments - 1, moment));
    this.table.show(this.pinned);
    this.view.reveal(this.pinned);
    announce(momentWords(this.timeline, this.pinned));
    this.redraw();
  }

  goToPeak() {
    const { view, timeline } = this;
    if (view.isWhole) view.zoom(0.1);
    view.show(view.place(timeline.peak) - view.span / 2, view.span);
    this.pin(timeline.peak);
  }

  // The moment under the pointer, or null outside the chart.
  momentAt(event) {
    const x = Math.floor(event.clientX - this.parts.plot.getBoundingClientRect().left - AXIS_LEFT);
    return this.drawn.columns[x] ?? null;
  }

  hover(event) {
    const { timeline } = this;
    const moment = this.momentAt(event);
    if (moment === null) {
      this.leave();
      return;
    }
    this.mark(moment);
    const size = this.drawn.sizeAt(event.clientY - this.parts.plot.getBoundingClientRect().top);
    const isMap = this.look === "address";
    const block = isMap ? blockAtAddress(timeline, this.places, moment, size) : blockInStack(timeline, this.stack, moment, size);
    const [title, rows] = block === null ? [isMap ? "Free" : "All blocks", []] : blockWords(timeline, block);
    showTooltip(event.clientX, event.clientY, title, [...rows, ...stateRows(timeline, moment)]);
  }

  leave() {
    hideTooltip();
    this.mark(null);
  }
}
