// The elements of a timeline.

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

// Devices without hover have a touch screen.
function keyWords() {
  if (window.matchMedia("(hover: none)").matches) {
    return ["Tap to pin a moment for the table and to show the block. Drag sideways to pan, and zoom with the buttons."];
  }
  const key = (text) => element("kbd", {}, text);
  return ["Wheel or ", key("+"), " ", key("-"), " zoom, drag or ", key("←"), " ", key("→"), " pan, ", key("0"),
    " shows all, ", key("p"), " goes to the peak, click or ", key("Shift"), " ", key("→"),
    " pins a moment for the table."];
}
