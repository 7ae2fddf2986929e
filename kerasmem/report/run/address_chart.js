// Map of the allocator's memory: addresses upward, events to the right, one box per block.

const GAP = 1 / 60; // fraction of the height between two distant regions

// Addresses without the wide gaps between regions: { begin by block, total, regions }.
function compactAddresses({ address, given }) {
  const order = Uint32Array.from(address.keys()).sort((a, b) => address[a] - address[b]);
  const begin = new Float64Array(address.length);
  const used = usedBytes(order, address, given);
  let [reached, shift] = [-1, 0];
  let regions = 0;
  for (const i of order) {
    if (reached < 0) shift = address[i];
    else if (address[i] > reached + used * GAP) {
      shift += address[i] - reached - used * GAP;
      regions += 1;
    }
    begin[i] = address[i] - shift;
    reached = Math.max(reached, address[i] + given[i]);
  }
  return { begin, total: reached - shift, regions: regions + 1 };
}

function usedBytes(order, address, given) {
  let [used, reached] = [0, 0];
  for (const i of order) {
    const end = address[i] + given[i];
    used += Math.max(0, end - Math.max(reached, address[i]));
    reached = Math.max(reached, end);
  }
  return used;
}

// Draws every block in the view with at least one pixel.
function drawAddresses(context, { width, height }, view, places) {
  const density = context.getTransform().a;
  const bottom = height - AXIS_BOTTOM;
  const image = new ImageData(Math.round((width - AXIS_LEFT) * density), Math.round((bottom - 8) * density));
  const pixels = new Uint32Array(image.data.buffer);
  const { start, end, given, kind, kinds, categories } = view.timeline;
  const scale = image.height / (places.total || 1);
  const toX = (moment) => ((view.place(moment) - view.from) / view.span) * image.width;
  const inkOf = Object.fromEntries(categories.map((name) => [name, pixel(name)]));
  const [first, last] = [view.momentAt(view.from), view.momentAt(view.to)];
  for (let i = 0; i < start.length; i++) {
    if (start[i] > last || end[i] < first) continue;
    const ink = inkOf[kinds[kind[i]].category];
    const x0 = Math.max(0, Math.floor(toX(start[i])));
    const x1 = Math.min(image.width, Math.max(x0 + 1, Math.round(toX(end[i]))));
    const y0 = image.height - Math.round((places.begin[i] + given[i]) * scale);
    const tall = Math.max(1, Math.round(given[i] * scale));
    const seam = tall > 3 ? 1 : 0; // separates neighbors
    for (let y = Math.max(0, y0 + seam); y < Math.min(image.height, y0 + tall); y++) {
      pixels.fill(ink, y * image.width + x0, y * image.width + x1);
    }
  }
  context.putImageData(image, Math.round(AXIS_LEFT * density), Math.round(8 * density));
  const toY = (size) => bottom - (size / places.total) * (bottom - 8);
  context.fillStyle = color("soft");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const size of byteTicks(0, places.total, 6)) context.fillText(roundBytesText(size), AXIS_LEFT - 8, toY(size));
  drawPlaceAxis(context, view, width, bottom);
  return { columns: view.columns(width - AXIS_LEFT), bottom, sizeAt: (y) => ((bottom - y) / (bottom - 8)) * places.total };
}
