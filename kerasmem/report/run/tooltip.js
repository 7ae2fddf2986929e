// The one box of words beside the pointer.

const tooltip = element("div", { class: "tooltip", hidden: true, "aria-hidden": "true" });
document.body.append(tooltip);

function showTooltip(x, y, title, rows) {
  const list = element("dl", {}, ...rows.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
  tooltip.replaceChildren(element("b", {}, title), list);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 16 + width > window.innerWidth ? x - 16 - width : x + 16;
  const top = y + 16 + height > window.innerHeight ? y - 16 - height : y + 16;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTooltip(); });
document.addEventListener("scroll", hideTooltip, { passive: true });
// A finger taps what a pointer hovers over; what it tapped stays until the next tap.
document.addEventListener("pointerdown", hideTooltip, { capture: true });

function listenLook(host, look, leave) {
  host.addEventListener("pointermove", look);
  host.addEventListener("pointerdown", look);
  host.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
}
