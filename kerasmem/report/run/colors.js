// Maps numbers to colors for color-blind readers: dark is low, bright is high.

// Nine colors of Matplotlib's viridis scale.
const SCALE = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140],
  [40, 174, 128], [94, 201, 98], [173, 220, 48], [253, 231, 37]];

function scaleColor(share) {
  const place = Math.max(0, Math.min(1, share)) * (SCALE.length - 1);
  const below = Math.min(Math.floor(place), SCALE.length - 2);
  return SCALE[below].map((value, i) => Math.round(value + (place - below) * (SCALE[below + 1][i] - value)));
}

// The color scale with its limits.
function scaleLegend() {
  const canvas = element("canvas", { width: 128, height: 1, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  for (let x = 0; x < 128; x++) {
    context.fillStyle = `rgb(${scaleColor(x / 127).join(" ")})`;
    context.fillRect(x, 0, 1, 1);
  }
  const [low, high] = [element("span"), element("span")];
  const show = (from, to) => { low.textContent = from; high.textContent = to; };
  return { node: element("span", { class: "scale" }, low, canvas, high), show };
}
