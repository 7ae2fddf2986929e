// Memory in use at a moment, as a sortable table and as the legend of the stack.

const GROUPINGS = [["both", "layer and category"], ...["layer", "category", "operation", "block"].map((by) => [by, by])];

function groupRows(timeline, moment, by) {
  const groups = new Map();
  for (const i of alive(timeline, moment)) {
    const kind = timeline.kinds[timeline.kind[i]];
    const key = { both: `${kind.layer}\n${kind.category}`, block: i }[by] ?? kind[by];
    const row = groups.get(key) || { ...kind, given: 0, requested: 0, count: 0 };
    row.given += timeline.given[i];
    row.requested += timeline.requested[i];
    row.count += 1;
    groups.set(key, row);
  }
  return [...groups.values()];
}

function readoutColumns(by, total) {
  const text = (name, of) => ({ name, text: true, value: of, show: of });
  const size = (name, of) => ({ name, value: of, show: (row) => bytesText(of(row)) });
  const layer = text("layer", (row) => row.layer || "(no layer)");
  const category = text("category", (row) => wordsOf(row.category));
  const operation = text("operation", (row) => row.operation || "(unknown)");
  const words = { both: [layer, category], layer: [layer], category: [category], operation: [operation],
    block: [operation, text("tensor", (row) => `${row.dtype}${row.shape}`), layer, category] }[by];
  const share = { name: "share", value: (row) => row.given, show: (row) => shareCell(row.given / total()) };
  const count = { name: "blocks", value: (row) => row.count, show: (row) => countText(row.count) };
  const figures = [size("given", (row) => row.given), size("requested", (row) => row.requested),
    size("rounding", (row) => row.given - row.requested), ...(by === "block" ? [] : [count]), share];
  return { columns: [...words, ...figures], sortedBy: words.length };
}

function shareCell(share) {
  const bar = element("i");
  bar.style.width = `${100 * share}%`;
  return element("span", {}, percentText(share), element("span", { class: "share", "aria-hidden": "true" }, bar));
}

// The table below a timeline: at the peak, or at the pinned moment.
function readout(host, timeline, pinPeak) {
  let by = "both";
  let moment = timeline.peak;
  let total = 1;
  let table = null;
  const place = element("div");
  const grouping = picker("Rows by", GROUPINGS, (value) => { by = value; rebuild(); });
  const back = element("button", { type: "button", onclick: pinPeak }, "Back to the peak");
  const gloss = element("p", { class: "note" },
    "Requested: bytes requested by the program. Given: bytes reserved by the allocator. Rounding: the difference.");
  host.replaceChildren(element("div", { class: "bar" }, grouping, back), gloss, place);

  function rebuild() {
    const { columns, sortedBy } = readoutColumns(by, () => total);
    table = sortableTable(columns, sortedBy);
    place.replaceChildren(table.node);
    show(moment);
  }
  function show(newMoment) {
    moment = newMoment;
    const rows = groupRows(timeline, moment, by);
    total = rows.reduce((a, row) => a + row.given, 0) || 1;
    back.hidden = moment === timeline.peak;
    table.show(rows, `In use ${momentWords(timeline, moment)}`);
  }
  rebuild();
  return { show };
}

function momentWords(timeline, moment) {
  const where = moment === timeline.peak ? "at the peak" : "at the pinned moment";
  const after = moment ? `after event ${countText(moment)}` : "before the first event";
  return `${where}, ${after}, at ${timeText(timeline.time[moment])}: ${bytesText(timeline.total[moment])}`;
}

function bandLegend(host, timeline, bands, moment) {
  const row = (name, size, ink) => {
    const swatch = element("i");
    if (ink) swatch.style.background = color(ink);
    return element("li", ink ? {} : { class: "total" }, swatch, element("span", { class: "name", title: name }, name),
      element("span", { class: "size" }, bytesText(size)));
  };
  const pool = timeline.reserved.length ? [row("pool", timeline.reserved[Math.max(0, moment - 1)], null)] : [];
  host.replaceChildren(row("in use", timeline.total[moment], null), ...pool,
    ...bands.toReversed().map((band) => row(band.name, band.sizes[moment], band.color)));
}
