// Light or dark: as the system has it, until the reader says otherwise.

const drawings = new Map(); // by host
const LEAST_WIDTH = 240; // of a chart: a frame that is not shown yet has none
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const probe = element("span", { hidden: true });
document.body.append(probe);
let resolved = new Map();

// A color of the style sheet as a canvas understands it.
function color(name) {
  if (!resolved.has(name)) {
    probe.style.color = `var(--${name})`;
    resolved.set(name, getComputedStyle(probe).color);
  }
  return resolved.get(name);
}

// The same as one pixel of an image.
function pixel(name) {
  const [red, green, blue] = color(name).match(/[\d.]+/g).map(Number);
  return new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0];
}

function chartWidth(host) {
  return Math.max(LEAST_WIDTH, host.clientWidth);
}

const watched = new ResizeObserver((entries) => {
  const hosts = entries.map((entry) => entry.target);
  // Within the observer a drawing that changes a size would be an error of the page.
  requestAnimationFrame(() => hosts.forEach((host) => {
    const drawing = drawings.get(host);
    if (!host.isConnected) forget(host);
    else if (drawing.width !== chartWidth(host)) drawNow(host, drawing);
  }));
});

// Draws into `host` now, and whenever the theme or its own width changes.
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

// Paper is white, and nothing on it can be opened.
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
