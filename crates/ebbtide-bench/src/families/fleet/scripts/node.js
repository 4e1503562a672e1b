// A server of pictures: unpacks a picture, scales it, packs the result and keeps it for a while.
const http = require("http");
const zlib = require("zlib");
const of = (name) => Number(process.env[name]);
const [width, height, count, keptBytes, keptMs] = [of("WIDTH"), of("HEIGHT"), of("PICTURES"), of("KEPT_MIB") * 1048576, of("KEPT_S") * 1000];

const pictures = [];
for (let n = 0, state = 1; n < count; n++) {
  const raw = Buffer.alloc(width * height * 4);
  for (let at = 0; at < raw.length; at++) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    raw[at] = ((at >> 6) + n * 40 + (state >>> 29)) & 255;
  }
  pictures.push(zlib.deflateSync(raw, { level: 1 }));
}

function scaled(raw, factor) {
  const [w, h] = [Math.floor(width / factor), Math.floor(height / factor)];
  const small = Buffer.alloc(w * h * 4);
  for (let y = 0; y < h; y++)
    for (let x = 0; x < w; x++)
      for (let c = 0; c < 4; c++) {
        const at = (y * factor * width + x * factor) * 4 + c;
        small[(y * w + x) * 4 + c] = (raw[at] + raw[at + 4] + raw[at + width * 4] + raw[at + width * 4 + 4]) >> 2;
      }
  return small;
}

const kept = new Map();
let bytes = 0;
function drop(until) {
  for (const [key, one] of kept) {
    if (bytes <= keptBytes && one.at > until) break;
    kept.delete(key);
    bytes -= one.small.length + one.packed.length;
  }
}
setInterval(() => drop(Date.now() - keptMs), 5000);

http
  .createServer((request, answer) => {
    if (request.url === "/ready") return answer.end("ok");
    const n = Number(request.url.slice(1));
    zlib.inflate(pictures[n % count], (failed, raw) => {
      if (failed) return answer.writeHead(500).end();
      const small = scaled(raw, 2 + (n % 5));
      zlib.deflate(small, { level: 1 }, (failed, packed) => {
        if (failed) return answer.writeHead(500).end();
        kept.set(`${n} ${Date.now()}`, { at: Date.now(), small, packed });
        bytes += small.length + packed.length;
        drop(Date.now() - keptMs);
        answer.end(packed);
      });
    });
  })
  .listen("s0");
