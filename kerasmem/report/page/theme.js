// Light or dark theme: the system setting until the user selects another.

const drawings = new Map(); // by host
const LEAST_WIDTH = 240; // minimum width of a chart; hidden frames have width 0
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const probe = element("span", { hidden: true });
document.body.append(probe);
let resolved = new Map();

// A color of the style sheet in canvas format.
function color(name) {
  if (!resolved.has(name)) {
    probe.style.color = `var(--${name})`;
    resolved.set(name, getComputedStyle(probe).color);
  }
  return resolved.get(name);
}

// A color of the style sheet as a pixel.
function pixel(name) {
  const [red, green, blue] = color(name).match(/[\d.]+/g).map(Number);
  return new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0];
}

function chartWidth(host) {
  return Math.max(LEAST_WIDTH, host.clientWidth);
}

const watched = new ResizeObserver((entries) => {
  const hosts = entries.map((entry) => entry.target);
  // Changing a size within the observer would raise a page error.
  requestAnimationFrame(() => hosts.forEach((host) => {
    const drawing = drawings.get(host);
    if (!host.isConnected) forget(host);
    else if (drawing.width !== chartWidth(host)) drawNow(host, drawing);
  }));
});

// Draws into `host` now and whenever the theme or the width changes.
function keepDrawn(host, draw) {
  const drawing = { draw };
  drawings.set(host, drawing);
  drawNow(host, drawing);
  watched.observe(host);
}

function drawNow(host, drawing) {
  drawing.width = chartWidth(host);
  drawing.draw();
}

function forget(host) {
  watched.unobserve(host);
  drawings.delete(host);
}

function drawAll() {
  resolved = new Map();
  drawings.forEach((drawing, host) => drawNow(host, drawing));
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemDark.matches;
}

function startTheme() {
  const button = document.getElementById("theme");
  const say = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  const use = (theme) => {
    document.documentElement.dataset.theme = theme;
    say();
    drawAll();
  };
  button.hidden = false;
  button.addEventListener("click", () => use(isDark() ? "light" : "dark"));
  systemDark.addEventListener("change", () => { say(); drawAll(); });
  say();
  startPrinting();
}

// For printing: light theme, with all details open.
function startPrinting() {
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = { theme: document.documentElement.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    document.documentElement.dataset.theme = "light";
    before.closed.forEach((details) => { details.open = true; });
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    if (before.theme) document.documentElement.dataset.theme = before.theme;
    else delete document.documentElement.dataset.theme;
    before.closed.forEach((details) => { details.open = false; });
    drawAll();
  });
}
