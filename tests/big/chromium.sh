# what: Chromium without a window, in its sandbox: a page with scripts, regular expressions and a canvas
# needs: chromium:chromium
# loaded: chromium
# limit_s: 600

cat > page.html <<'END'
<!doctype html><title>t</title><p id=p></p><canvas id=c width=200 height=200></canvas>
<script>
const words = {}; for (let i = 0; i < 100000; i++) (words['w' + i * 7919 % 5000] ||= []).push(i);
let n = 0; for (const w in words) n += words[w].length;
const x = document.getElementById('c').getContext('2d');
for (let i = 0; i < 100; i++) { x.fillStyle = `rgb(${i},${i * 2},9)`; x.fillRect(i, i, 50, 50); }
const d = x.getImageData(0, 0, 200, 200).data; let s = 0; for (const v of d) s += v;
for (let i = 0; i < 2000; i++) { const e = document.createElement('i'); e.textContent = 'x'.repeat(i % 40); document.body.append(e); }
document.getElementById('p').textContent = [n, s, 'abc'.repeat(9999).match(/bca/g).length, document.querySelectorAll('i').length].join(' ');
</script>
END
export XDG_CONFIG_HOME=$PWD/config XDG_CACHE_HOME=$PWD/cache
chromium --headless --disable-gpu --no-first-run --user-data-dir="$PWD/profile" --dump-dom "file://$PWD/page.html" > dom 2> errors || {
    grep -q -i sandbox errors && { echo "the sandbox cannot be made here: $(grep -i -m1 sandbox errors | cut -c1-120)"; exit 77; }
    tail -2 errors
    exit 1
}
grep -o '<p id="p">[^<]*' dom
