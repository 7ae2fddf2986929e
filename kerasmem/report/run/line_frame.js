// The frame of a line chart: what lies where, and its two axes.

function lineFrame(host, lines, epochs, axis, fits) {
  const logarithmic = axis === "log";
  const width = chartWidth(host);
  const named = width >= 400;
  const [height, top, bottom, left] = [208, 10, 182, 58];
  const right = width - (named ? 124 : 8);
  const first = epochs[0];
  const span = epochs[epochs.length - 1] - first || 1;
  const y = lines.flatMap((line) => [...line.y]).filter((value) => Number.isFinite(value) && (!logarithmic || value > 0));
  const high = y.reduce((a, b) => Math.max(a, b), { log: 1e-12, bytes: 1, number: -Infinity }[axis]);
  const least = y.reduce((a, b) => Math.min(a, b), high);
  const [low, over] = logarithmic ? [least, high] : linearAxis(least, high);
  const [low10, high10] = [Math.log10(low) - 0.1, Math.log10(high) + 0.1];
  const share = logarithmic
    ? (value) => (Math.log10(value) - low10) / (high10 - low10)
    : (value) => (value - low) / (over - low);
  return {
    width, height, top, bottom, left, right, named, axis, epochs,
    fits: [...fits].map((number) => middleBefore(epochs, number)).filter((x) => x !== null),
    cutAt: logarithmic || low === 0 ? null : low,
    toX: (epoch) => left + ((epoch - first) / span) * (right - left),
    toEpoch: (x) => first + ((x - left) / (right - left)) * span,
    toY: (value) => bottom - share(value) * (bottom - top),
    yTicks: logarithmic ? powerTicks(10 ** low10, 10 ** high10, 5) : (axis === "bytes" ? byteTicks : evenTicks)(low, over, 5),
    xTicks: wholeTicks(first, first + span, Math.max(2, Math.floor((right - left) / 60))),
  };
}

// Between the last reading of one fit and the first of the next: epoch 1 lies between 0 and 1.
function middleBefore(epochs, number) {
  const [last, next] = [epochs.findLast((x) => x <= number - 1), epochs.find((x) => x > number - 1)];
  return last === undefined || next === undefined ? null : (last + next) / 2;
}

// Lines that lie close together, away from 0, are looked at closely: their axis does not begin there.
function linearAxis(least, high) {
  if (least >= 0 && least <= 0.6 * high) return [0, 1.08 * high];
  const room = 0.25 * (high - least) + 0.01 * Math.abs(high) || 1;
  return [least - room, high + room];
}

// Losses that fall by orders of magnitude are drawn by their powers of ten.
function numberAxisOf(lines) {
  const y = lines.flatMap((line) => [...line.y]).filter(Number.isFinite);
  const [least, high] = [Math.min(...y), Math.max(...y)];
  return least > 0 && high > 100 * least ? "log" : "number";
}

function drawAxes(svg, frame) {
  const format = frame.axis === "bytes" ? roundBytesText : tickText;
  for (const value of frame.yTicks) {
    const y = frame.toY(value);
    svg.append(shape("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }),
      shape("text", { x: frame.left - 8, y: y + 4, "text-anchor": "end" }, format(value)));
  }
  for (const epoch of frame.xTicks) {
    svg.append(shape("text", { x: frame.toX(epoch), y: frame.bottom + 18, "text-anchor": "middle" }, countText(epoch)));
  }
  svg.append(shape("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
  if (frame.cutAt !== null) drawCut(svg, frame, frame.axis === "bytes" ? bytesText(frame.cutAt) : numberText(frame.cutAt));
  if (frame.named) svg.append(shape("text", { x: frame.right + 40, y: frame.bottom + 18 }, "epoch"));
}

// An axis that does not begin at 0 is broken, and says so.
function drawCut(svg, { left, bottom }, begin) {
  svg.append(shape("path", { class: "cut", d: `M${left} ${bottom}l-4 -3l8 -5l-8 -5l4 -3` }),
    shape("text", { class: "cut-words", x: left + 8, y: bottom - 5 }, `axis begins at ${begin}, not at 0`));
}
