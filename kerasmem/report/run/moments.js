// A timeline by moment: moment 0 is the start of the window, moment n the state after event n - 1.

const MOST_BANDS = 10;

function indexTimeline(timeline) {
  const { start, life, total, kinds } = timeline;
  const end = Float64Array.from(start, (begin, i) => begin + life[i]);
  let peak = 0;
  for (let moment = 1; moment < total.length; moment++) if (total[moment] > total[peak]) peak = moment;
  const names = ["operation", "layer", "phase", "category", "shape", "dtype"];
  const named = kinds.map((values) => Object.fromEntries(names.map((name, i) => [name, values[i]])));
  return { ...timeline, end, peak, kinds: named, moments: total.length };
}

function alive(timeline, moment) {
  const found = [];
  const { start, end } = timeline;
  for (let i = 0; i < start.length; i++) if (start[i] <= moment && moment < end[i]) found.push(i);
  return found;
}

// The bands of the stack: { name, color, sizes by moment }, from bottom to top.
function stackBands(timeline, by) {
  const groups = by === "layer" ? layerGroups(timeline) : categoryGroups(timeline);
  const sizes = groups.map(() => new Float64Array(timeline.moments));
  const places = new Map(groups.map((group, i) => [group.key, i]));
  const rest = places.get(null);
  const bandOf = timeline.kinds.map((kind) => places.get(kind[by]) ?? rest);
  const { start, end, given, kind, moments } = timeline;
  for (let i = 0; i < start.length; i++) {
    const column = sizes[bandOf[kind[i]]];
    column[start[i]] += given[i];
    if (end[i] < moments) column[end[i]] -= given[i];
  }
  for (const column of sizes) for (let m = 1; m < moments; m++) column[m] += column[m - 1];
  return { bands: groups.map((group, i) => ({ ...group, sizes: sizes[i] })), bandOf };
}

function categoryGroups({ categories, kinds }) {
  const used = new Set(kinds.map((kind) => kind.category));
  const order = ["parameter", "optimizer_state", "gradient", "activation", "temporary", "input", "unknown"];
  return [...order, ...categories.filter((name) => !order.includes(name))].filter((name) => used.has(name))
    .map((name) => ({ key: name, name: wordsOf(name), color: name }));
}

// The layers with the most bytes at the peak and over the window have separate bands. The others share one.
function layerGroups(timeline) {
  const { start, end, given, kind, kinds, total, peak } = timeline;
  const area = total.reduce((a, b) => a + b, 0) || 1;
  const weights = new Map();
  for (let i = 0; i < start.length; i++) {
    const { layer } = kinds[kind[i]];
    if (!layer) continue;
    const atPeak = start[i] <= peak && peak < end[i] ? 1 / total[peak] : 0;
    weights.set(layer, (weights.get(layer) || 0) + given[i] * (atPeak + (end[i] - start[i]) / area));
  }
  const largest = [...weights].sort((a, b) => b[1] - a[1]).slice(0, MOST_BANDS);
  return [...largest.map(([layer], i) => ({ key: layer, name: layer, color: `layer-${i}` })),
    { key: null, name: "all others", color: "layer-other" }];
}
