// The one box of words beside the pointer.

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
// The event of a scroll that brought the chart here may come after a key has shown it.
document.addEventListener("scroll", () => { if (scrolled() !== shownAt) hideTooltip(); }, { passive: true });
// A finger taps what a pointer hovers over; what it tapped stays until the next tap.
document.addEventListener("pointerdown", hideTooltip, { capture: true });

function listenLook(host, look, leave) {
  host.addEventListener("pointermove", look);
  host.addEventListener("pointerdown", look);
  host.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
}

// A chart whose places are looked at one by one, by the pointer or by the arrow keys.
// chart: { count, nearest(x, y), place(index), look(index), leave() }; places in CSS pixels from
// the corner of `host`; `look` marks a place and returns its title and rows.
function listenPlaces(host, chart) {
  let at = -1;
  host.tabIndex = 0;
  host.setAttribute("role", "application"); // it takes the arrow keys
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
