# ffmpeg encodes a synthetic film; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
ffmpeg -nostdin -loglevel error -f lavfi -i "testsrc2=size=1280x720:rate=25:duration=$((2 * $1))" \
    -f lavfi -i "sine=frequency=440:duration=$((2 * $1))" -threads 2 -c:v mpeg4 -c:a aac "$dir/film.mkv" &
echo "@watch $!"
wait $!
[ "$(env -u LD_PRELOAD wc -c <"$dir/film.mkv")" -gt 10000 ]
echo "done $1"
