// Reads the output of `Packer` in `panels.py`: a header, and columns of numbers as
// typed arrays.

const COLUMN_TYPES = {
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array,
  float32: Float32Array, float64: Float64Array,
};

async function unpack(text) {
  const letters = atob(text.trim());
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = header.columns.map((column) => readColumn(buffer, 4 + length, column));
  return withColumns(header.content, columns);
}

function readColumn(buffer, begin, { type, at, length, rising }) {
  const stored = new COLUMN_TYPES[type](buffer, begin + at, length);
  if (!rising) return stored;
  const column = new Float64Array(length);
  let value = 0;
  for (let i = 0; i < length; i++) column[i] = value += stored[i];
  return column;
}

function withColumns(value, columns) {
  if (Array.isArray(value)) return value.map((item) => withColumns(item, columns));
  if (value === null || typeof value !== "object") return value;
  if ("column" in value) return columns[value.column];
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withColumns(item, columns)]));
}
