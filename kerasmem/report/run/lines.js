// Lines over the epochs, each with its name at its end.

const LINE_HEIGHT = 15;

// lines: [{ name, style, x, y }], y in bytes, or numbers; on a "log" axis those above 0.
// fits: numbers of the epochs with which a fit after the first began: no line joins two fits.
function lineChart(host, lines, { axis, fits, marks = [] }) {
  const format = axis === "bytes" ? bytesText : numberText;
  const epochs = [...new Set(lines.flatMap((line) => [...line.x]))].sort((a, b) => a - b);
  let at = null;
  let frame = null;
  host.tabIndex = 0;
  host.setAttribute("role", "application"); // it takes the arrow keys
  host.setAttribute("aria-roledescription", "chart");

  function draw() {
    frame = lineFrame(host, lines, epochs, axis, fits);
    const svg = shape("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, "aria-hidden": "true" });
    drawAxes(svg, frame);
    svg.append(...frame.fits.map((x) => shape("line",
      { class: "fit", x1: frame.toX(x), x2: frame.toX(x), y1: frame.top, y2: frame.bottom })));
    lines.forEach((line) => svg.append(...lineShapes(line, frame)));
    svg.append(...marks.map((x) => crossShape(frame.toX(x), frame.bottom - 8)));
    if (frame.named) drawNames(svg, lines, frame);
    frame.cursor = shape("g");
    svg.append(frame.cursor);
    host.replaceChildren(svg, ...(frame.named ? [] : [lineLegend(lines)]));
  }

  function look(index, x, y) {
    at = Math.max(0, Math.min(epochs.length - 1, index));
    const epoch = epochs[at];
    const rows = lines.map((line) => [line, nearest(line.x, epoch)])
      .filter(([line, i]) => Math.abs(line.x[i] - epoch) < 1e-3)
      .map(([line, i]) => [line.name, format(line.y[i])]);
    const title = `epoch ${Number.isInteger(epoch) ? countText(epoch) : epoch.toFixed(2)}`;
    frame.cursor.replaceChildren(shape("line",
      { class: "cursor", x1: frame.toX(epoch), x2: frame.toX(epoch), y1: frame.top, y2: frame.bottom }));
    showTooltip(x, y, title, rows);
    return `${title}: ${rows.map((row) => row.join(" ")).join(", ")}`;
  }

  function leave() {
    frame.cursor.replaceChildren();
    hideTooltip();
  }

  listenLook(host, (event) => {
    const box = host.getBoundingClientRect();
    look(nearest(epochs, frame.toEpoch(event.clientX - box.left)), event.clientX, event.clientY);
  }, leave);
  host.addEventListener("blur", leave);
  host.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const box = host.getBoundingClientRect();
    const next = Math.max(0, Math.min(epochs.length - 1, (at === null ? -1 : at) + moves[event.key]));
    announce(look(next, box.left + frame.toX(epochs[next]), box.top + frame.top));
  });
  keepDrawn(host, draw);
}

function lineShapes({ style, x, y }, frame) {
  const drawn = [...x.keys()].filter((i) => Number.isFinite(y[i]) && (frame.axis !== "log" || y[i] > 0));
  if (drawn.length < 3 || style === "first") {
    const dots = drawn.map((i) => shape("circle", { class: `dot ${style}`, cx: frame.toX(x[i]), cy: frame.toY(y[i]), r: 4 }));
    if (style === "first") return [...dots, ...drawn.map((i) => firstStepName(frame.toX(x[i]), frame.toY(y[i]), y[i], frame))];
    return [linePath(drawn, style, x, y, frame), ...dots];
  }
  return [linePath(drawn, style, x, y, frame)];
}

function linePath(drawn, style, x, y, frame) {
  const points = drawn.map((i, n) => {
    const joins = n > 0 && !frame.fits.some((begin) => x[drawn[n - 1]] < begin && begin < x[i]);
    return `${joins ? "L" : "M"}${frame.toX(x[i]).toFixed(1)} ${frame.toY(y[i]).toFixed(1)}`;
  });
  return shape("path", { class: `line ${style}`, d: points.join("") });
}

// To the left of its dot where there is no room to the right, and below what stands there.
function firstStepName(x, y, value, frame) {
  const text = `first step ${bytesText(value)}`;
  const fits = x + 7 + 6.5 * text.length < frame.width;
  return shape("text", { class: "label", x: fits ? x + 7 : x - 7, y: y + (fits ? 17 : 17 + LINE_HEIGHT), "text-anchor": fits ? "start" : "end" }, text);
}

function crossShape(x, y) {
  return shape("path", { class: "cross", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` });
}

// Names stand beside the ends of their lines, moved apart where they would meet.
function drawNames(svg, lines, frame) {
  const names = lines.filter((line) => line.style !== "first").map((line) => ({ line, end: frame.toY(lastOf(line.y)) }))
    .filter(({ end }) => Number.isFinite(end)).sort((a, b) => a.end - b.end);
  let y = -Infinity;
  names.forEach((name) => { name.y = y = Math.max(name.end, y + LINE_HEIGHT, frame.top + 4); });
  let limit = frame.bottom;
  for (const name of names.toReversed()) {
    name.y = Math.min(name.y, limit);
    limit = name.y - LINE_HEIGHT;
  }
  for (const { line, end, y: place } of names) {
    const x = frame.toX(line.x[line.x.length - 1]);
    svg.append(
      shape("path", { class: "leader line", d: `M${x + 5} ${end}L${frame.right + 6} ${place}` }),
      shape("circle", { class: `dot ${line.style}`, cx: frame.right + 10, cy: place, r: 3.5 }),
      shape("text", { class: "label", x: frame.right + 18, y: place + 4 }, line.name));
  }
}

function lineLegend(lines) {
  return element("ul", { class: "legend" }, ...lines.map((line) => element("li", {},
    shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" },
      shape("circle", { class: `dot ${line.style}`, cx: 5, cy: 5, r: 4 })), line.name)));
}

function lastOf(values) {
  return values.findLast((value) => Number.isFinite(value) && value > 0) ?? values[values.length - 1];
}

function nearest(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle;
    else high = middle;
  }
  return Math.abs(sorted[high] - value) < Math.abs(sorted[low] - value) ? high : low;
}
