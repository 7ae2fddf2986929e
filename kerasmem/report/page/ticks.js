// Tick positions of an axis.

// Multiples of a power of two, for bytes.
function byteTicks(low, high, most) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(high - low, most) / most));
  return steps(Math.ceil(low / step) * step, high, step);
}

// Multiples of 1, 2 or 5 times a power of ten.
function evenTicks(low, high, most) {
  const rough = Math.max(high - low, 1e-9) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return steps(Math.ceil(low / step) * step, high, step);
}

function wholeTicks(low, high, most) {
  return evenTicks(low, high, most).filter(Number.isInteger);
}

// Powers of ten for a logarithmic axis. Up to two decades, also their multiples by 2 and 5.
function powerTicks(low, high, most) {
  if (high < 100 * low) {
    const power = 10 ** Math.floor(Math.log10(low));
    return [1, 2, 5, 10, 20, 50, 100, 200, 500].map((factor) => factor * power).filter((value) => value >= low && value <= high);
  }
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  return steps(first, last, step).map((power) => 10 ** power);
}

function steps(low, high, step) {
  const count = Math.floor((high - low) / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, i) => low + i * step);
}
