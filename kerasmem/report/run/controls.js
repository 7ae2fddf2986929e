// Controls and canvases.

// A row of buttons with a single selection.
function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    element("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => press(value) }, text));
  function press(value) {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === value)));
    choose(value);
  }
  const node = element("div", { class: "choice", role: "group", "aria-label": label },
    element("span", {}, label), element("div", { class: "group" }, ...buttons));
  return { node, press };
}

function picker(label, options, choose) {
  const select = element("select", { "aria-label": label, onchange: () => choose(select.value) },
    ...options.map(([value, text]) => element("option", { value }, text)));
  return element("label", { class: "choice" }, element("span", {}, label), select);
}

const FONT = "12px system-ui, sans-serif";

// A canvas in the resolution of the screen, with CSS pixels as units.
function surface(canvas, width, height) {
  const density = window.devicePixelRatio || 1;
  const [wide, tall] = [Math.round(width * density), Math.round(height * density)];
  const context = canvas.getContext("2d");
  if (canvas.width !== wide || canvas.height !== tall) {
    Object.assign(canvas, { width: wide, height: tall });
    canvas.style.height = `${height}px`;
  }
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  return context;
}
