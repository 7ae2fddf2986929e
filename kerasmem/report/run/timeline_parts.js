// The elements that a timeline is drawn into.

function timelineParts(timeline) {
  const canvas = () => element("canvas", { "aria-hidden": "true" });
  const parts = { main: canvas(), over: canvas(), lane: canvas(), overview: canvas() };
  const peak = bytesText(timeline.total[timeline.peak]);
  parts.plot = element("div", {
    class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart",
    "aria-label": `Bytes in use, ${timeline.title}: at most ${peak}`, "aria-describedby": "timeline-keys",
  }, parts.main, parts.over);
  parts.band = element("div", { class: "overview" }, parts.overview);
  parts.legend = element("ul", { class: "legend" });
  parts.table = element("div", { class: "readout" });
  parts.keys = element("p", { class: "keys", id: "timeline-keys" }, ...keyWords());
  return parts;
}

// Whoever has no pointer that hovers has a finger.
function keyWords() {
  if (window.matchMedia("(hover: none)").matches) {
    return ["A tap pins a moment for the table and tells of the block under it. Drag sideways to move, zoom by the buttons."];
  }
  const key = (text) => element("kbd", {}, text);
  return ["Wheel or ", key("+"), " ", key("-"), " zoom, drag or ", key("←"), " ", key("→"), " pan, ", key("0"),
    " shows all, ", key("p"), " goes to the peak, click or ", key("Shift"), " ", key("→"),
    " pins a moment for the table."];
}
