// Numbers as text; bytes as `kerasmem.units.format_bytes` writes them.

function bytesText(size) {
  if (Math.abs(size) < 1024) return `${size} B`;
  let value = size;
  let unit = "";
  for (unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (Math.abs(value) < 999.5) break;
  }
  const digits = Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
  return `${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

// For an axis with steps of powers of two, without redundant digits.
function roundBytesText(size) {
  return bytesText(size).replace(/\.0+ /, " ").replace(/(\.\d*?)0+ /, "$1 ");
}

function countText(count) {
  return Math.round(count).toLocaleString("en-US");
}

function numberText(value) {
  if (!Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e5 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

// For an axis of numbers, with enough digits to distinguish the ticks.
function tickText(value) {
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(6)));
}

function percentText(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "-";
}

function timeText(nanoseconds) {
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  const [factor, unit] = units.find(([size]) => nanoseconds >= size) || [1, "ns"];
  return `${Number((nanoseconds / factor).toPrecision(4))} ${unit}`;
}

function wordsOf(name) {
  return name.replaceAll("_", " ");
}

const FACTORS = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ns: 1e-9, µs: 1e-6, ms: 1e-3 };

// The leading number of a cell in the common unit of its column. Cells without a number sort last.
function quantityOf(text) {
  const [, number, unit] = text.match(/^([+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)\s?(\S*)/) || [];
  return number === undefined ? -Infinity : Number(number.replaceAll(",", "")) * (FACTORS[unit] || 1);
}
