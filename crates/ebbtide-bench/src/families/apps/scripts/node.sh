# node parses JSON and fills maps and buffers, and keeps a tenth; $1 scales.
set -eu
echo "@watch $$"
exec node -e '
const rounds = 4 * Number(process.argv[1]), kept = [];
let total = 0;
for (let round = 0; round < rounds; round++) {
  const rows = [];
  for (let n = 0; n < 20000; n++) rows.push({ id: n, name: "row " + n * round, text: "x".repeat(n % 200) });
  const parsed = JSON.parse(JSON.stringify(rows));
  const table = new Map(parsed.map((row) => [row.name, row]));
  const buffers = parsed.filter((row) => row.id % 4 === 0).map((row) => Buffer.alloc(5000 + row.id % 60000, row.id % 251));
  total += table.size + buffers.reduce((sum, one) => sum + one[one.length - 1], 0);
  for (let n = 0; n < buffers.length; n += 10 * rounds) kept.push(buffers[n]);
}
console.log("@rest");
process.stdin.once("data", () => {
  console.log("done " + (total + kept.length));
  process.exit(0);
});
' "$1"
