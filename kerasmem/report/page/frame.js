// The frame of a chart: its layout and its axes.

const LOG_ROOM = 10 ** 0.1;

// Kinds of axes: minimum top, start and end, ticks and their labels.
const SCALES = {
  epoch: { top: -Infinity, ends: (low, high) => [low, high > low ? high : low + 1], ticks: wholeTicks, text: countText },
  number: { top: -Infinity, ends: linearEnds, ticks: evenTicks, text: tickText, cut: numberText },
  bytes: { top: 1, ends: linearEnds, ticks: byteTicks, text: roundBytesText, cut: bytesText },
  log: { top: 1e-12, ends: (low, high) => [low / LOG_ROOM, high * LOG_ROOM], ticks: powerTicks, text: tickText, logarithmic: true },
};

// An axis of a kind in `SCALES` that covers all values, between two pixels.
function axisOf(kind, values, [begin, end], mostTicks) {
  const { top, ends, ticks, text, cut, logarithmic } = SCALES[kind];
  const shows = (value) => Number.isFinite(value) && (!logarithmic || value > 0);
  const shown = values.some(shows) ? values.filter(shows) : [1];
  const highest = shown.reduce((a, b) => Math.max(a, b), top);
  const [low, high] = ends(shown.reduce((a, b) => Math.min(a, b), highest), highest);
  const [scale, back] = logarithmic ? [Math.log10, (power) => 10 ** power] : [(x) => x, (x) => x];
  const share = (end - begin) / (scale(high) - scale(low));
  return {
    begin, end, shows, text,
    to: (value) => begin + (scale(value) - scale(low)) * share,
    from: (place) => back(scale(low) + (place - begin) / share),
    ticks: ticks(low, high, mostTicks),
    cutWords: cut && (low > 0 || high < 0) ? `axis begins at ${cut(low)}, not at 0` : null,
  };
}

// For values close to each other and far from 0, the axis does not start at 0.
function linearEnds(least, high) {
  if (least >= 0 && least <= 0.6 * high) return [0, 1.08 * high];
  const room = 0.25 * (high - least) + 0.01 * Math.abs(high) || 1;
  return [least - room, high + room];
}

// Losses that fall by orders of magnitude use a logarithmic axis.
function numberAxisOf(lines) {
  const y = lines.flatMap((line) => [...line.y]).filter(Number.isFinite);
  const [least, high] = [Math.min(...y), Math.max(...y)];
  return least > 0 && high > 100 * least ? "log" : "number";
}

// An empty chart with two axes.
function framed(width, height, x, y) {
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const across = (place, look) => shape("line", { class: look, x1: x.begin, x2: x.end, y1: place, y2: place });
  for (const value of y.ticks) {
    svg.append(across(y.to(value), "grid"),
      shape("text", { x: x.begin - 8, y: y.to(value) + 4, "text-anchor": "end" }, y.text(value)));
  }
  for (const value of x.ticks) {
    svg.append(shape("text", { x: x.to(value), y: y.begin + 18, "text-anchor": "middle" }, x.text(value)));
  }
  svg.append(across(y.begin, "axis"));
  if (y.cutWords) drawCut(svg, x.begin, y.begin, y.cutWords);
  return svg;
}

// Marks an axis that does not start at 0.
function drawCut(svg, left, bottom, words) {
  svg.append(shape("path", { class: "cut", d: `M${left} ${bottom}l-4 -3l8 -5l-8 -5l4 -3` }),
    shape("text", { class: "cut-words", x: left + 8, y: bottom - 5 }, words));
}

// Legend of a chart without space for labels next to the lines.
function styleLegend(entries) {
  return element("ul", { class: "legend" }, ...entries.map(({ name, style }) => element("li", {},
    shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" },
      shape("circle", { class: `dot ${style}`, cx: 5, cy: 5, r: 4 })), name)));
}
