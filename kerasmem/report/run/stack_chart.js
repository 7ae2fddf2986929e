// Bytes in use over the window as stacked bands, exact at every peak.

const AXIS_LEFT = 62;
const AXIS_BOTTOM = 22;
const CHART_HEIGHT = 340;
const POOL_SHOWN = 2.5; // larger ratios of the pool to the peak would flatten the stack

function stackTop(timeline) {
  const peak = timeline.total[timeline.peak] || 1;
  const pool = timeline.reserved.reduce((a, b) => Math.max(a, b), 0);
  return 1.08 * (pool <= POOL_SHOWN * peak ? Math.max(peak, pool) : peak);
}

// Draws the stack and returns the data for hit testing.
function drawStack(context, { width, height }, view, bands) {
  const { timeline } = view;
  const [inner, bottom] = [width - AXIS_LEFT, height - AXIS_BOTTOM];
  const top = stackTop(timeline);
  const toY = (size) => bottom - (size / top) * (bottom - 8);
  const columns = view.columns(inner);
  drawByteAxis(context, width, toY, byteTicks(0, top, 6));
  const base = new Float64Array(inner);
  for (const band of bands) drawBand(context, band, columns, base, toY);
  if (timeline.reserved.length) drawPool(context, columns, timeline.reserved, toY, top);
  drawPlaceAxis(context, view, width, bottom);
  drawPeak(context, view, inner, toY);
  return { columns, bottom, sizeAt: (y) => ((bottom - y) / (bottom - 8)) * top };
}

function drawBand(context, band, columns, base, toY) {
  context.beginPath();
  columns.forEach((moment, x) => {
    const y = toY(base[x] + band.sizes[moment]);
    context.lineTo(AXIS_LEFT + x, y);
    context.lineTo(AXIS_LEFT + x + 1, y);
  });
  for (let x = columns.length - 1; x >= 0; x--) {
    const y = toY(base[x]);
    context.lineTo(AXIS_LEFT + x + 1, y);
    context.lineTo(AXIS_LEFT + x, y);
    base[x] += band.sizes[columns[x]];
  }
  context.closePath();
  context.fillStyle = color(band.color);
  context.fill();
  drawTops(context, band, columns, base, toY);
}

// Separates a band from the band above. Vertical lines are omitted, because they would
// hide peaks of one pixel.
function drawTops(context, band, columns, base, toY) {
  context.beginPath();
  columns.forEach((moment, x) => {
    if (!band.sizes[moment]) return;
    const y = toY(base[x]);
    context.moveTo(AXIS_LEFT + x, y);
    context.lineTo(AXIS_LEFT + x + 1, y);
  });
  context.strokeStyle = color("panel");
  context.lineWidth = 0.5;
  context.stroke();
}

function drawPool(context, columns, reserved, toY, top) {
  context.beginPath();
  columns.forEach((moment, x) => {
    const size = reserved[Math.max(0, moment - 1)];
    if (size <= top) context.lineTo(AXIS_LEFT + x, toY(size));
  });
  context.setLineDash([3, 3]);
  context.lineWidth = 1.25;
  context.strokeStyle = color("soft");
  context.stroke();
  context.setLineDash([]);
}

function drawByteAxis(context, width, toY, ticks) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const size of ticks) {
    context.fillStyle = color("grid");
    context.fillRect(AXIS_LEFT, Math.round(toY(size)), width - AXIS_LEFT, 1);
    context.fillStyle = color("soft");
    context.fillText(roundBytesText(size), AXIS_LEFT - 8, toY(size));
  }
}

function drawPlaceAxis(context, view, width, bottom) {
  const inner = width - AXIS_LEFT;
  context.textAlign = "center";
  context.fillStyle = color("line");
  context.fillRect(AXIS_LEFT, bottom, inner, 1);
  context.fillStyle = color("soft");
  for (const place of evenTicks(view.from, view.to, Math.max(2, Math.floor(inner / 110)))) {
    const x = AXIS_LEFT + ((place - view.from) / view.span) * inner;
    const text = view.axis === "time" ? timeText(place) : countText(place);
    if (x > AXIS_LEFT + 20 && x < width - 24) context.fillText(text, x, bottom + 13);
    context.fillRect(Math.round(x), bottom, 1, 4);
  }
}

function drawPeak(context, view, inner, toY) {
  const { timeline } = view;
  const place = view.place(timeline.peak);
  if (place < view.from || place > view.to) return;
  const x = AXIS_LEFT + ((place - view.from) / view.span) * inner;
  const size = timeline.total[timeline.peak];
  const right = x < AXIS_LEFT + inner - 110;
  context.fillStyle = color("ink");
  context.beginPath();
  context.moveTo(x, toY(size) - 1);
  context.lineTo(x - 4, toY(size) - 8);
  context.lineTo(x + 4, toY(size) - 8);
  context.fill();
  context.textAlign = right ? "left" : "right";
  context.fillText(`peak ${bytesText(size)}`, x + (right ? 8 : -8), Math.max(8, toY(size) - 8));
}
