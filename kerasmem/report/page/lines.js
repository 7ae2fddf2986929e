// Lines over the epochs, labeled at their ends.

const LINE_HEIGHT = 15;

// lines: [{ name, style, x, y }], y in bytes or numbers; only positive values on a "log" axis.
// step: quantity of the horizontal axis: "epoch" or "call".
// fits: first epochs of later fits. Lines do not connect two fits.
// marks: epochs with a cross.
function lineChart(host, lines, { axis, step, fits, marks }) {
  const format = axis === "bytes" ? bytesText : numberText;
  const epochs = [...new Set(lines.flatMap((line) => [...line.x]))].sort((a, b) => a - b);
  let frame = null;

  function draw() {
    frame = lineFrame(host, lines, epochs, axis, fits);
    const { x, y, named } = frame;
    const svg = framed(frame.width, frame.height, x, y);
    if (named) svg.append(shape("text", { x: x.end + 40, y: y.begin + 18 }, step));
    svg.append(...frame.fits.map((begin) => upright("fit", begin)));
    lines.forEach((line) => svg.append(...lineShapes(line, frame)));
    svg.append(...[...marks].map((epoch) => crossShape(x.to(epoch), y.begin - 8)));
    if (named) drawNames(svg, lines, frame);
    frame.cursor = shape("g");
    svg.append(frame.cursor);
    host.replaceChildren(svg, ...(named ? [] : [styleLegend(lines)]));
  }

  function upright(look, epoch) {
    const place = frame.x.to(epoch);
    return shape("line", { class: look, x1: place, x2: place, y1: frame.y.end, y2: frame.y.begin });
  }

  keepDrawn(host, draw);
  listenPlaces(host, {
    count: epochs.length,
    nearest: (x) => nearest(epochs, frame.x.from(x)),
    place: (index) => [frame.x.to(epochs[index]), frame.y.end],
    look(index) {
      const epoch = epochs[index];
      const rows = lines.map((line) => [line, nearest(line.x, epoch)])
        .filter(([line, i]) => Math.abs(line.x[i] - epoch) < 1e-3)
        .map(([line, i]) => [line.name, format(line.y[i])]);
      frame.cursor.replaceChildren(upright("cursor", epoch));
      return [`${step} ${Number.isInteger(epoch) ? countText(epoch) : epoch.toFixed(2)}`, rows];
    },
    leave: () => frame.cursor.replaceChildren(),
  });
}

function lineFrame(host, lines, epochs, axis, fits) {
  const width = chartWidth(host);
  const named = width >= 400;
  const right = width - (named ? 124 : 8);
  return {
    width, height: 208, named,
    fits: [...fits].map((number) => middleBefore(epochs, number)).filter((x) => x !== null),
    x: axisOf("epoch", epochs, [58, right], Math.max(2, Math.floor((right - 58) / 60))),
    y: axisOf(axis, lines.flatMap((line) => [...line.y]), [182, 10], 5),
  };
}

// Between the last reading of a fit and the first of the next. Epoch 1 extends from 0 to 1.
function middleBefore(epochs, number) {
  const [last, next] = [epochs.findLast((x) => x <= number - 1), epochs.find((x) => x > number - 1)];
  return last === undefined || next === undefined ? null : (last + next) / 2;
}

function lineShapes({ style, x, y }, frame) {
  const drawn = [...x.keys()].filter((i) => frame.y.shows(y[i]));
  if (drawn.length < 3 || style === "first") {
    const dots = drawn.map((i) => shape("circle", { class: `dot ${style}`, cx: frame.x.to(x[i]), cy: frame.y.to(y[i]), r: 4 }));
    if (style === "first") return [...dots, ...drawn.map((i) => firstStepName(frame.x.to(x[i]), frame.y.to(y[i]), y[i], frame))];
    return [linePath(drawn, style, x, y, frame), ...dots];
  }
  return [linePath(drawn, style, x, y, frame)];
}

function linePath(drawn, style, x, y, frame) {
  const points = drawn.map((i, n) => {
    const joins = n > 0 && !frame.fits.some((begin) => x[drawn[n - 1]] < begin && begin < x[i]);
    return `${joins ? "L" : "M"}${frame.x.to(x[i]).toFixed(1)} ${frame.y.to(y[i]).toFixed(1)}`;
  });
  return shape("path", { class: `line ${style}`, d: points.join("") });
}

// To the left of the dot if there is no space to the right, and below existing labels.
function firstStepName(x, y, value, frame) {
  const text = `first step ${bytesText(value)}`;
  const fits = x + 7 + 6.5 * text.length < frame.width;
  return shape("text", { class: "label", x: fits ? x + 7 : x - 7, y: y + (fits ? 17 : 17 + LINE_HEIGHT), "text-anchor": fits ? "start" : "end" }, text);
}

function crossShape(x, y) {
  return shape("path", { class: "cross", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` });
}

// Labels are next to the ends of their lines, moved apart to avoid overlaps.
function drawNames(svg, lines, frame) {
  const names = lines.filter((line) => line.style !== "first").map((line) => ({ line, end: frame.y.to(line.y.findLast(frame.y.shows)) }))
    .filter(({ end }) => Number.isFinite(end)).sort((a, b) => a.end - b.end);
  let y = -Infinity;
  names.forEach((name) => { name.y = y = Math.max(name.end, y + LINE_HEIGHT, frame.y.end + 4); });
  let limit = frame.y.begin;
  for (const name of names.toReversed()) {
    name.y = Math.min(name.y, limit);
    limit = name.y - LINE_HEIGHT;
  }
  for (const { line, end, y: place } of names) {
    const x = frame.x.to(line.x[line.x.length - 1]);
    svg.append(
      shape("path", { class: "leader line", d: `M${x + 5} ${end}L${frame.x.end + 6} ${place}` }),
      shape("circle", { class: `dot ${line.style}`, cx: frame.x.end + 10, cy: place, r: 3.5 }),
      shape("text", { class: "label", x: frame.x.end + 18, y: place + 4 }, line.name));
  }
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
