// A single block: hit testing and tooltip.

// Blocks are ordered by allocation within their band.
function blockInStack(timeline, { bands, bandOf }, moment, size) {
  let below = 0;
  const band = bands.findIndex((candidate) => size < (below += candidate.sizes[moment]));
  if (band < 0 || size < 0) return null;
  let height = below - bands[band].sizes[moment];
  const isIt = (i) => bandOf[timeline.kind[i]] === band && size < (height += timeline.given[i]);
  return alive(timeline, moment).find(isIt) ?? null;
}

function blockAtAddress(timeline, { begin }, moment, size) {
  const isIt = (i) => begin[i] <= size && size < begin[i] + timeline.given[i];
  return alive(timeline, moment).find(isIt) ?? null;
}

// Title and rows of name and value.
function blockWords(timeline, block) {
  const { operation, layer, phase, category, shape: dimensions, dtype } = timeline.kinds[timeline.kind[block]];
  return [operation || "(unknown operation)", [
    ["layer", layer || "(no layer)"],
    ["category", wordsOf(category) + (phase === "unknown" ? "" : `, ${phase}`)],
    ["tensor", `${dtype}${dimensions}` || "(unknown)"],
    ["requested", bytesText(timeline.requested[block])],
    ["given", bytesText(timeline.given[block])],
    ["alive", lifeWords(timeline, block)],
  ]];
}

function lifeWords({ start, end, moments }, block) {
  const from = start[block] ? `event ${countText(start[block])}` : "the opening";
  const to = end[block] < moments ? `event ${countText(end[block])}` : "the end";
  return `${from} to ${to}`;
}

// Properties of all blocks at a moment.
function stateRows({ total, time, reserved }, moment) {
  const pool = reserved.length ? [["pool", bytesText(reserved[Math.max(0, moment - 1)])]] : [];
  return [["in use", bytesText(total[moment])],
    ["at", `${timeText(time[moment])}, event ${countText(moment)}`], ...pool];
}
