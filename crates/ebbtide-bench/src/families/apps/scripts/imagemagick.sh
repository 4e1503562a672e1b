# convert scales, blurs and turns pictures; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
export MAGICK_THREAD_LIMIT=2
n=0
while [ $n -lt "$1" ]; do
    convert -size 1200x1200 -seed $n gradient:red-blue -attenuate 2 +noise Gaussian -resize 150% -blur 0x2 -rotate 17 \
        \( +clone -flop \) +append -resize 25% "$dir/$n.png"
    [ -s "$dir/$n.png" ]
    n=$((n + 1))
done
echo "done $n"
