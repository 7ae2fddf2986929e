// The shared tooltip.

const tooltip = element("div", { class: "tooltip", hidden: true, "aria-hidden": "true" });
document.body.append(tooltip);
let shownAt = "";

function showTooltip(x, y, title, rows) {
  const list = element("dl", {}, ...rows.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
  tooltip.replaceChildren(element("b", {}, title), list);
  tooltip.hidden = false;
  shownAt = scrolled();
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 16 + width > window.innerWidth ? x - 16 - width : x + 16;
  const top = y + 16 + height > window.innerHeight ? y - 16 - height : y + 16;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

const scrolled = () => `${window.scrollX} ${window.scrollY}`;

function hideTooltip() {
  tooltip.hidden = true;
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTooltip(); });
// A pending scroll event may arrive after a key has opened the tooltip.
document.addEventListener("scroll", () => { if (scrolled() !== shownAt) hideTooltip(); }, { passive: true });
// A tap replaces hovering. The tooltip remains until the next tap.
document.addEventListener("pointerdown", hideTooltip, { capture: true });

function listenLook(host, look, leave) {
  host.addEventListener("pointermove", look);
  host.addEventListener("pointerdown", look);
  host.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
}

// A chart whose points are inspected with the pointer or the arrow keys.
// chart: { count, nearest(x, y), place(index), look(index), leave() }; positions in CSS pixels from
// the corner of `host`; `look` marks a point and returns its title and rows.
function listenPlaces(host, chart) {
  let at = -1;
  host.tabIndex = 0;
  host.setAttribute("role", "application"); // uses the arrow keys
  host.setAttribute("aria-roledescription", "chart");
  const show = (index, x, y) => {
    at = index;
    const [title, rows] = chart.look(index);
    showTooltip(x, y, title, rows);
    return `${title}: ${rows.map((row) => row.join(" ")).join(", ")}`;
  };
  const leave = () => {
    chart.leave();
    hideTooltip();
  };
  listenLook(host, (event) => {
    const box = host.getBoundingClientRect();
    show(chart.nearest(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
  }, leave);
  host.addEventListener("blur", leave);
  host.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const box = host.getBoundingClientRect();
    const next = Math.max(0, Math.min(chart.count - 1, at + moves[event.key]));
    const [x, y] = chart.place(next);
    announce(show(next, box.left + x, box.top + y));
  });
}
