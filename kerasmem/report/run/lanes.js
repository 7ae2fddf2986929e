// Two low charts under the stack: fragmentation of the pool, and an overview of the whole window.

const LANE_HEIGHT = 66;
const OVERVIEW_HEIGHT = 44;

function drawFragmentation(context, width, view, columns) {
  const { fragmentation } = view.timeline;
  const toY = (share) => LANE_HEIGHT - 6 - share * (LANE_HEIGHT - 28);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const share of [0, 1]) {
    context.fillStyle = color("grid");
    context.fillRect(AXIS_LEFT, Math.round(toY(share)), width - AXIS_LEFT, 1);
    context.fillStyle = color("soft");
    context.fillText(`${100 * share} %`, AXIS_LEFT - 8, toY(share));
  }
  context.beginPath();
  columns.forEach((moment, x) => {
    const share = fragmentation[Math.max(0, moment - 1)];
    if (Number.isFinite(share)) context.lineTo(AXIS_LEFT + x, toY(share));
  });
  context.strokeStyle = color("gradient");
  context.lineWidth = 1.5;
  context.stroke();
  context.textAlign = "left";
  context.fillStyle = color("soft");
  context.fillText("fragmentation of the pool", AXIS_LEFT, toY(1) - 11);
}

function drawOverview(context, width, view, wholeColumns) {
  const { timeline } = view;
  const inner = width - AXIS_LEFT;
  const top = timeline.total[timeline.peak] || 1;
  context.beginPath();
  context.moveTo(AXIS_LEFT, OVERVIEW_HEIGHT);
  wholeColumns.forEach((moment, x) =>
    context.lineTo(AXIS_LEFT + x, OVERVIEW_HEIGHT - (timeline.total[moment] / top) * (OVERVIEW_HEIGHT - 4)));
  context.lineTo(width, OVERVIEW_HEIGHT);
  context.fillStyle = color("line");
  context.fill();
  const [x0, x1] = [view.from, view.to].map((place) => AXIS_LEFT + (place / view.length) * inner);
  context.globalAlpha = 0.2;
  context.fillStyle = color("accent");
  context.fillRect(x0, 0, Math.max(2, x1 - x0), OVERVIEW_HEIGHT);
  context.globalAlpha = 1;
  context.strokeStyle = color("accent");
  context.lineWidth = 1.5;
  context.strokeRect(x0 + 0.75, 0.75, Math.max(2, x1 - x0 - 1.5), OVERVIEW_HEIGHT - 1.5);
}
