// The frame of a line chart: what lies where, and its two axes.

function lineFrame(host, lines, epochs, logarithmic) {
  const width = chartWidth(host);
  const named = width >= 400;
  const [height, top, bottom, left] = [208, 10, 182, 58];
  const right = width - (named ? 124 : 8);
  const first = epochs[0];
  const span = epochs[epochs.length - 1] - first || 1;
  const y = lines.flatMap((line) => [...line.y]).filter((value) => Number.isFinite(value) && (!logarithmic || value > 0));
  const high = y.reduce((a, b) => Math.max(a, b), logarithmic ? 1e-12 : 1);
  const least = y.reduce((a, b) => Math.min(a, b), high);
  const [low, over] = logarithmic ? [least, high] : byteAxis(least, high);
  const [low10, high10] = [Math.log10(low) - 0.1, Math.log10(high) + 0.1];
  const share = logarithmic
    ? (value) => (Math.log10(value) - low10) / (high10 - low10)
    : (value) => (value - low) / (over - low);
  return {
    width, height, top, bottom, left, right, named, logarithmic, epochs,
    toX: (epoch) => left + ((epoch - first) / span) * (right - left),
    toEpoch: (x) => first + ((x - left) / (right - left)) * span,
    toY: (value) => bottom - share(value) * (bottom - top),
    yTicks: logarithmic ? powerTicks(10 ** low10, 10 ** high10, 5) : byteTicks(low, over, 5),
    xTicks: wholeTicks(first, first + span, Math.max(2, Math.floor((right - left) / 60))),
  };
}

// Lines that lie close together high up are looked at closely: their axis does not begin at 0.
function byteAxis(least, high) {
  if (least <= 0.6 * high) return [0, 1.08 * high];
  const room = 0.25 * (high - least) + 0.01 * high;
  return [least - room, high + room];
}

function drawAxes(svg, frame) {
  const format = frame.logarithmic ? numberText : roundBytesText;
  for (const value of frame.yTicks) {
    const y = frame.toY(value);
    svg.append(shape("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }),
      shape("text", { x: frame.left - 8, y: y + 4, "text-anchor": "end" }, format(value)));
  }
  for (const epoch of frame.xTicks) {
    svg.append(shape("text", { x: frame.toX(epoch), y: frame.bottom + 18, "text-anchor": "middle" }, countText(epoch)));
  }
  svg.append(shape("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
  if (frame.named) svg.append(shape("text", { x: frame.right + 40, y: frame.bottom + 18 }, "epoch"));
}
