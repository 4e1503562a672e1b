# what: ffmpeg: encodes, filters and decodes with threads
# needs: ffmpeg:ffmpeg
# loaded: ffmpeg
# limit_s: 600

make_it() { ffmpeg -nostdin -v error -threads 2 "$@"; }
make_it -f lavfi -i testsrc2=duration=3:size=640x360:rate=25 -f lavfi -i sine=frequency=440:duration=3 \
    -c:v mpeg4 -threads 2 -q:v 5 -c:a flac -flags +bitexact -fflags +bitexact -y film.mkv
make_it -i film.mkv -vf 'scale=320:180,hue=s=0.5,boxblur=2' -af 'aecho=0.8:0.9:40:0.3' -flags +bitexact -fflags +bitexact -c:v ffv1 -c:a pcm_s16le -y small.mkv
make_it -i small.mkv -f framemd5 - | tail -n 60 | md5sum
make_it -i film.mkv -map 0:a -f md5 -
