// Gradients by layer or variable (rows) and epoch (columns), as colors, with values in a tooltip.

const MEASURES = {
  norm: { name: "L2 norm", logarithmic: true, join: (values) => Math.hypot(...values), text: numberText },
  update_ratio: { name: "update ratio", logarithmic: true, join: (values) => Math.max(...values), text: numberText },
  zero_fraction: { name: "zeros", logarithmic: false, join: (values) => sum(values) / values.length, text: percentText },
  norm_max: { name: "largest norm", logarithmic: true, join: (values) => Math.max(...values), text: numberText },
  max_abs: { name: "largest entry", logarithmic: true, join: (values) => Math.max(...values), text: numberText },
  nonfinite: { name: "nonfinite entries", logarithmic: false, join: sum, text: countText },
};

function sum(values) {
  return values.reduce((a, b) => a + b, 0);
}

// Rows of the heatmap with values by measure and column.
function flowRows({ paths, columns, measures }, byLayer) {
  const groups = new Map();
  paths.forEach((path, i) => {
    const name = byLayer ? path.split("/").slice(0, -1).join("/") || path : path;
    groups.set(name, [...(groups.get(name) || []), i]);
  });
  return [...groups].map(([name, members]) => ({ name, value: (measure, column) => {
    const values = members.map((i) => measures[measure][i * columns.length + column]).filter((v) => !Number.isNaN(v));
    return values.length ? MEASURES[measure].join(values) : NaN;
  } }));
}

function heatmap(host, flow) {
  let byLayer = true;
  let measure = "norm";
  let rows = [];
  let frame = null;
  let at = null;
  const canvas = element("canvas", { "aria-hidden": "true" });
  const mark = element("div", { class: "cell", hidden: true });
  const plot = element("div", { class: "heatmap", tabindex: "0", role: "application",
    "aria-roledescription": "heatmap", "aria-label": "Gradient flow. Arrow keys go from cell to cell." }, canvas, mark);
  const legend = scaleLegend();
  const shown = ["norm", "update_ratio", "zero_fraction"].map((name) => [name, MEASURES[name].name]);
  host.append(
    element("div", { class: "bar" },
      choice("Rows", [[true, "Layers"], [false, "Variables"]], byLayer, (value) => { byLayer = value; draw(); }).node,
      choice("Color", shown, measure, (value) => { measure = value; draw(); }).node, legend.node),
    plot);

  function draw() {
    rows = flowRows(flow, byLayer);
    frame = heatFrame(plot, canvas.getContext("2d"), rows, flow.columns);
    paintCells(surface(canvas, frame.width, frame.height), frame, rows, measure, legend);
    mark.hidden = true;
    at = null;
  }

  function look(row, column, x, y) {
    at = { row, column };
    const box = frame.box(row, column);
    Object.assign(mark.style, { left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` });
    mark.hidden = false;
    const found = Object.entries(MEASURES).map(([name, { name: label, text }]) => [label, text(rows[row].value(name, column))]);
    showTooltip(x, y, rows[row].name, [["epoch", countText(flow.columns[column])], ...found]);
    return `${rows[row].name}, epoch ${flow.columns[column]}: ${found.map((pair) => pair.join(" ")).join(", ")}`;
  }

  listenLook(plot, (event) => {
    const box = canvas.getBoundingClientRect();
    const cell = frame.cell(event.clientX - box.left, event.clientY - box.top);
    if (cell) look(cell.row, cell.column, event.clientX, event.clientY);
    else leave();
  }, leave);
  function leave() {
    mark.hidden = true;
    hideTooltip();
  }
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = at ? moves[event.key] : [0, 0];
    const row = Math.max(0, Math.min(rows.length - 1, (at ? at.row : 0) + down));
    const column = Math.max(0, Math.min(flow.columns.length - 1, (at ? at.column : 0) + right));
    const [outer, box] = [canvas.getBoundingClientRect(), frame.box(row, column)];
    announce(look(row, column, outer.left + box.x + box.width, outer.top + box.y));
  });
  keepDrawn(plot, draw);
}

function heatFrame(plot, context, rows, columns) {
  const width = chartWidth(plot);
  context.font = FONT;
  const longest = Math.max(...rows.map((row) => context.measureText(row.name).width));
  const left = Math.min(12 + longest, 260, Math.round(width * 0.4));
  const size = rows.length > 60 ? 15 : 16;
  const [inner, bottom] = [width - left - 2, rows.length * size];
  const cellWidth = inner / columns.length;
  return {
    width, height: bottom + 22, left, size, bottom, cellWidth, right: left + cellWidth * columns.length, columns,
    box: (row, column) => ({ x: left + column * cellWidth, y: row * size, width: Math.max(2, cellWidth), height: size }),
    cell: (x, y) => {
      const [row, column] = [Math.floor(y / size), Math.floor((x - left) / cellWidth)];
      return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? { row, column } : null;
    },
  };
}

function paintCells(context, frame, rows, measure, legend) {
  const { logarithmic, text } = MEASURES[measure];
  const values = rows.map((row) => Float64Array.from(frame.columns, (_, column) => row.value(measure, column)));
  const scale = (value) => (logarithmic ? Math.log10(value) : value);
  const known = values.flatMap((row) => [...row]).filter((value) => Number.isFinite(value) && (!logarithmic || value > 0));
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  const span = scale(high) - scale(low) || 1;
  legend.show(text(low), text(high));
  context.textBaseline = "middle";
  rows.forEach((row, r) => {
    const y = r * frame.size;
    context.fillStyle = color("soft");
    context.textAlign = "right";
    context.fillText(shortened(context, row.name, frame.left - 8), frame.left - 8, y + frame.size / 2);
    for (let column = 0; column < frame.columns.length; column++) {
      const value = values[r][column];
      const empty = Number.isNaN(value) || (logarithmic && value <= 0);
      context.fillStyle = empty ? color("grid") : `rgb(${scaleColor((scale(value) - scale(low)) / span).join(" ")})`;
      const [begin, end] = [column, column + 1].map((edge) => Math.floor(frame.left + edge * frame.cellWidth));
      context.fillRect(begin, y, Math.max(1, end - begin), frame.size - 1);
      if (row.value("nonfinite", column) > 0) {
        context.fillStyle = color("alarm");
        context.fillRect(begin, y, Math.max(2, end - begin), 4);
      }
    }
  });
  context.textAlign = "center";
  context.fillStyle = color("soft");
  for (const epoch of wholeTicks(frame.columns[0], frame.columns[frame.columns.length - 1], 8)) {
    const column = nearest(frame.columns, epoch);
    context.fillText(countText(epoch), frame.left + (column + 0.5) * frame.cellWidth, frame.bottom + 12);
  }
}

// The end of a path is most informative and is kept.
function shortened(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  let text = name;
  while (text.length > 2 && context.measureText(`…${text}`).width > width) text = text.slice(1);
  return `…${text}`;
}
