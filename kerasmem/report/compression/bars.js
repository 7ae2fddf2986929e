// Rows with one bar per model, or with bars for before and after.

const BAR = 13;
const BAR_STYLES = ["pool", "peak", "current", "largest", "within", "validation", "card"];

// bars: names of the bars of a row; rows: [{ name, values, texts }], all values on one scale.
function barChart(host, { bars, rows }) {
  let [above, height, left, scale, cursor] = [];
  const style = (i) => BAR_STYLES[i % BAR_STYLES.length];

  function draw() {
    const width = chartWidth(host);
    const beside = width >= 560;
    [left, above] = beside ? [210, 5] : [0, 20];
    height = above + bars.length * BAR + 5;
    scale = (width - left - 90) / Math.max(...rows.flatMap((row) => [...row.values]), Number.MIN_VALUE);
    const size = height * rows.length;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${size}`, "aria-hidden": "true" });
    cursor = shape("g");
    svg.append(cursor);
    rows.forEach((row, n) => {
      const name = beside ? { x: left - 10, y: n * height + height / 2 + 4, "text-anchor": "end" } : { x: 0, y: n * height + 14 };
      svg.append(shape("text", { class: "label", ...name }, shortName(row.name, beside ? 30 : Math.floor(width / 7))));
      row.texts.forEach((text, i) => {
        const [y, length] = [n * height + above + i * BAR, Math.max(1, row.values[i] * scale)];
        svg.append(shape("rect", { class: `dot ${style(i)}`, x: left, y: y + 1, width: length, height: BAR - 2, rx: 2 }),
          shape("text", { x: left + length + 6, y: y + BAR - 3 }, text));
      });
    });
    host.replaceChildren(svg, styleLegend(bars.map((name, i) => ({ name, style: style(i) }))));
  }

  keepDrawn(host, draw);
  listenPlaces(host, {
    count: rows.length,
    nearest: (x, y) => Math.max(0, Math.min(rows.length - 1, Math.floor(y / height))),
    place: (index) => [left + 40, (index + 0.5) * height],
    look(index) {
      const { name, values, texts } = rows[index];
      cursor.replaceChildren(shape("rect", { class: "row", x: 0, y: index * height, width: "100%", height }));
      return [name, bars.map((bar, i) => [bar, `${texts[i]}${i ? `, ${percentText(values[i] / values[0])}` : ""}`])];
    },
    leave: () => cursor.replaceChildren(),
  });
}

// The end of a path is more informative than its start.
function shortName(name, most) {
  return name.length > most ? `…${name.slice(1 - most)}` : name;
}
