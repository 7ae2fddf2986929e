// Trials as points of drop against cost, with the Pareto front as a line.

const POINTS_HEIGHT = 320;
const POINT_SIZE = 4.5;

// trials: { names, rows, x, y, error, front, taken, most, across, up }: name, tooltip rows, position
// and standard error by trial; indices of the front and of the selected trial; the largest allowed y, if any.
function pointChart(host, trials) {
  const { names, rows, x: costs, y: drops, error, front, taken, most } = trials;
  const whiskers = [...drops].flatMap((drop, i) => [drop - error[i], drop, drop + error[i]]);
  let [x, y, points, cursor] = [];

  function draw() {
    const width = chartWidth(host);
    x = axisOf("log", [...costs, 1], [58, width - 12], Math.max(2, Math.floor(width / 90)));
    y = axisOf("number", [...whiskers, ...most], [POINTS_HEIGHT - 44, 30], 6);
    points = [...costs.keys()].filter((i) => x.shows(costs[i]) && y.shows(drops[i])).sort((a, b) => costs[a] - costs[b]);
    const svg = framed(width, POINTS_HEIGHT, x, y);
    svg.append(shape("text", { x: 4, y: 14 }, trials.up),
      shape("text", { x: (x.begin + x.end) / 2, y: POINTS_HEIGHT - 6, "text-anchor": "middle" }, trials.across),
      bound(x.to(1), x.to(1), y.begin, y.end), ...[...most].map((drop) => bound(x.begin, x.end, y.to(drop), y.to(drop))));
    const onFront = points.filter((i) => front.includes(i));
    svg.append(...points.filter((i) => error[i] > 0).map(whisker),
      shape("path", { class: "line front", d: onFront.map((i, n) => `${n ? "L" : "M"}${place(i).join(" ")}`).join("") }),
      ...points.filter((i) => i !== taken).map((i) => dot(i, front.includes(i) ? "front" : "tried", POINT_SIZE)));
    if (points.includes(taken)) svg.append(dot(taken, "taken", POINT_SIZE + 2.5), takenName(width));
    cursor = shape("g");
    svg.append(cursor);
    host.replaceChildren(svg, styleLegend([{ name: "tried", style: "tried" },
      { name: "on the Pareto front", style: "front" }, { name: "taken", style: "taken" }]));
  }

  const place = (i) => [x.to(costs[i]), y.to(drops[i])];
  const bound = (x1, x2, y1, y2) => shape("line", { class: "bound", x1, x2, y1, y2 });
  const whisker = (i) => shape("line", { class: "whisker", x1: x.to(costs[i]), x2: x.to(costs[i]),
    y1: y.to(drops[i] - error[i]), y2: y.to(drops[i] + error[i]) });
  const dot = (i, style, r) => shape("circle", { class: `dot ${style}`, cx: place(i)[0], cy: place(i)[1], r });

  // On the side of the point with more space.
  function takenName(width) {
    const [left, top] = place(taken);
    const right = left < width / 2;
    return shape("text", { class: "label", x: left + (right ? 12 : -12), y: top - 10, "text-anchor": right ? "start" : "end" }, names[taken]);
  }

  keepDrawn(host, draw);
  if (!points.length) return;
  listenPlaces(host, {
    count: points.length,
    nearest(left, top) {
      const distances = points.map((i) => Math.hypot(place(i)[0] - left, place(i)[1] - top));
      return distances.indexOf(Math.min(...distances));
    },
    place: (index) => place(points[index]),
    look(index) {
      const i = points[index];
      const [cx, cy] = place(i);
      cursor.replaceChildren(shape("circle", { class: "ring", cx, cy, r: POINT_SIZE + 5 }));
      return [names[i], rows[i]];
    },
    leave: () => cursor.replaceChildren(),
  });
}
