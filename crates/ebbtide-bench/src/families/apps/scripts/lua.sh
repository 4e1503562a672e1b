# lua builds tables and strings, and keeps a tenth; $1 scales.
set -eu
echo "@watch $$"
SCALE=$1 exec lua5.4 -e '
local rounds, kept, sum = 2 * tonumber(os.getenv("SCALE")), {}, 0
for round = 1, rounds do
    local rows = {}
    for n = 1, 60000 do
        rows[n] = { name = "row " .. n * round, values = { n, n * 2, n % 7 }, text = string.rep("x", n % 90) }
    end
    table.sort(rows, function(a, b) return (a.values[1] * 7919) % 60013 < (b.values[1] * 7919) % 60013 end)
    for n = 1, #rows, 10 * rounds do kept[#kept + 1] = rows[n] end
    for n = 1, #rows, 100 do sum = sum + #rows[n].text + #rows[n].name end
end
collectgarbage()
print("@rest")
io.stdout:flush()
io.read()
print(string.format("done %d", sum + #kept))
'
